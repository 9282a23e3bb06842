"""Errors of the API types.

ApiError
├── InvalidJob      the object is not a valid DistributedTrainingJob; carries every violation
└── InvalidRuntime  the object is not a valid DistributedTrainingRuntime; carries every violation
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """A violation of the schema or of a rule: where, and what to write instead."""

    path: str
    """Path as the API server writes it: `spec.template.spec.containers[0].name`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ApiError(Exception):
    """Base of all errors of `dtj_core.api`."""


class InvalidJob(ApiError):
    """The object violates the schema or one of its rules."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations


class InvalidRuntime(ApiError):
    """The object violates the schema of a runtime or one of its rules."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations
