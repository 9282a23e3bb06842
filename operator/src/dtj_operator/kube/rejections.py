"""Decides whether the API server rejects a child for ever, for now, or has not judged it at all."""

from __future__ import annotations

from typing import NoReturn

from dtj_operator import errors

# Marks of responses that have the status of a validation but come from somebody else, or are not
# about the job's own content.
BY_OTHERS = (
    "admission webhook",
    "AdmissionPolicy",  # Validating and Mutating
    "metadata.ownerReferences",  # child of a deleted namesake, still terminating
    "updates to statefulset spec",  # somebody else has just created a StatefulSet of that name
)


class Rejected(Exception):
    """The API server rejected a child. The planner turns the rejection into a condition.

    `permanent`: the child is invalid as the job describes it, which fails a job that has never run.
    Every other rejection is retried.
    """

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


def raise_rejection(error: errors.KubeError, *, permanent: bool) -> NoReturn:
    """Raises Rejected if `error` is about the object, else `error`."""
    if not is_rejection(error):
        raise error
    raise Rejected(error.message, permanent=permanent) from error


def is_rejection(error: errors.KubeError) -> bool:
    """Returns whether the API server examined the object and does not accept it, now or ever.

    A missing response, an unknown login, a busy server and an overtaken plan prove nothing about
    the object.
    """
    if isinstance(error, errors.Transient):
        return error.status >= 500
    return not isinstance(error, errors.NotAuthenticated | errors.Overtaken)


def is_permanent(error: errors.KubeError) -> bool:
    """Returns whether the API server's own validation found the object invalid.

    An invalid object stays invalid. Every other rejection may pass by itself or through somebody's
    action: a quota, a limit range, a webhook, a policy, a right, a service account that does not
    exist yet.
    """
    return isinstance(error, errors.Invalid) and not any(mark in error.message for mark in BY_OTHERS)
