"""`spec.entrypoint`: the script or module of the ranks."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from dtj_core.api.base_model import Model, Rule
from dtj_core.api.template import Argument

# The API server's \w has ASCII alone, and Python's does not.
_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
ModuleName = Annotated[str, StringConstraints(max_length=256, pattern=_MODULE)]


class Entrypoint(Model):
    """Script or module that every rank runs: `python3 -u SCRIPT ARGS…` or `python3 -u -m MODULE
    ARGS…`.
    """

    script: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
    """Path of a Python file in the image."""
    module: Annotated[str, StringConstraints(max_length=1024, pattern=_MODULE)] | None = None
    """Python module in the image, as for `python3 -m`."""
    args: list[Argument] = Field(default=[], max_length=512)
    """Arguments of the script or module."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.script) != has(self.module)",
            message="set exactly one of script (a path) and module (as in python3 -m)",
            holds=lambda self: (self.script is None) != (self.module is None),
        ),
    )
