"""Errors of the API types.

ApiError
└── InvalidJob      an object that is no valid DistributedTrainingJob; carries every violation
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong with an object: where, and what to write instead."""

    path: str
    """As the API server names it: `spec.template.spec.containers[0].name`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ApiError(Exception):
    """Base of all errors of `dtj_core.api`."""


class InvalidJob(ApiError):
    """The object breaks the schema or a rule of it."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations
