"""The exceptions that the operator raises.

OperatorError
├── OptionError           a flag, a variable or a file that the operator reads is wrong: exit 2
├── NotServed             the API server does not serve the resource: the CRD is missing, exit 1
├── ShellEnded            kopf's watch loops ended unexpectedly: exit 1, the kubelet restarts the operator
├── NotLeader             a write was not sent, because this operator does not lead (any more)
└── KubeError             the API server rejected a call, or could not be reached
    ├── ObjectNotFound    404
    ├── Conflict          409: another uid, or the name is taken
    │   └── Overtaken     the stored job is not the version that was planned on
    ├── Invalid           400, 422: the object is invalid as written
    ├── Forbidden         403: admission or RBAC (`by_rbac` distinguishes them)
    ├── Gone              410: a resourceVersion or a page is too old
    ├── NotAuthenticated  401
    └── Transient         429, 5xx, no connection, deadline: a retry may succeed
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base class of all."""


class OptionError(OperatorError):
    """The message names the flag and what to write instead."""


class NotServed(OperatorError):
    """The message names the ways to install the CRD."""


class ShellEnded(OperatorError):
    """No watch is running any more."""


class NotLeader(OperatorError):
    """A write was not sent, because this operator does not lead (any more).

    No KubeError: the API server has judged nothing, and no plan may draw a conclusion.
    """


class KubeError(OperatorError):
    """A response that is not 2xx. `status` is the HTTP status, or 0 if there was no response."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason


class ObjectNotFound(KubeError):
    """404."""


class Conflict(KubeError):
    """409."""


class Overtaken(Conflict):
    """The stored job is another job, or another version, than the plan was made from."""


class Invalid(KubeError):
    """400 or 422."""


class Forbidden(KubeError):
    """403, by an admission plugin (the object is rejected) or by RBAC (the caller is)."""

    @property
    def by_rbac(self) -> bool:
        """Whether RBAC denied the request, rather than an admission plugin.

        RBAC's message opens with the caller:
        `statefulsets.apps "j" is forbidden: User "system:…" cannot patch …`.
        """
        return ' is forbidden: User "' in self.message and " cannot " in self.message


class Gone(KubeError):
    """410."""


class NotAuthenticated(KubeError):
    """401."""


class Transient(KubeError):
    """No response, or one that may be different in a moment."""
