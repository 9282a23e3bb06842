"""The API types of training.dtj.dev: the one source of the CRD and of its reference page.

`read` reads a stored object and ignores fields that it does not know, because an operator may be
older than the CRD. `validate` checks what a person wrote: unknown fields and broken rules are
errors with a path, as on the API server.
"""

from dtj_core.api.errors import ApiError, InvalidJob, InvalidRuntime, Violation
from dtj_core.api.read import read, salvage, validate, violations
from dtj_core.api.scaling import scaled
from dtj_core.api.v1alpha1 import DistributedTrainingJob, Spec, find_trainer_container

__all__ = [
    "ApiError",
    "DistributedTrainingJob",
    "InvalidJob",
    "InvalidRuntime",
    "Spec",
    "Violation",
    "find_trainer_container",
    "read",
    "salvage",
    "scaled",
    "validate",
    "violations",
]
