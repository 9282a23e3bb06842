"""`spec.runtimeRef`: the runtime whose defaults a job takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from dtj_core.api.base_model import Model

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class RuntimeRef(Model):
    """Runtime whose defaults the job takes."""

    name: Annotated[str, StringConstraints(max_length=253, pattern=NAME_PATTERN)] = Field()
    """Name of a DistributedTrainingRuntime."""
    update_policy: Literal["Never", "OnResume"] | None = None
    """Whether the job takes a change of the runtime. Never: it keeps the runtime as it was when the job
    started, until runtimeRef.name changes. OnResume: a job that is resumed after a suspension takes the
    runtime as it is then. Default: Never. A change never touches a job that runs."""
