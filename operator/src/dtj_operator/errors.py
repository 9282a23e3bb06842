"""Everything that the operator raises.

OperatorError
├── OptionError           a flag, a variable or a file of the operator's own is wrong: exit 2
├── NotServed             the API server doesn't serve our resource: the CRD is missing, exit 1
├── ShellEnded            kopf's watch loops ended by themselves: exit 1, the kubelet starts us again
└── KubeError              the API server (or the way to it) said no
    ├── ObjectNotFound          404
    ├── Conflict          409: another uid, or a name that is taken
    │   └── Overtaken     the stored job is not the one that was planned on
    ├── Invalid           400, 422: the object can't be as it is written
    ├── Forbidden         403: admission or RBAC (`by_rbac` tells which)
    ├── Gone              410: a resourceVersion or a page is too old
    ├── NotAuthenticated  401
    └── Transient         429, 5xx, no connection, deadline: the same call may work later
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of all."""


class OptionError(OperatorError):
    """The message names the flag and what to write instead."""


class NotServed(OperatorError):
    """The message says how to install the CRD."""


class ShellEnded(OperatorError):
    """No watch is running any more."""


class KubeError(OperatorError):
    """An answer that is not 2xx. `status` is the HTTP status, 0 where there was no answer."""

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
    """The stored job is another one, or another version, than the plan was made from."""


class Invalid(KubeError):
    """400 or 422."""


class Forbidden(KubeError):
    """403, by an admission plugin (the object is refused) or by RBAC (we are)."""

    @property
    def by_rbac(self) -> bool:
        """RBAC's refusal begins with who we are: `statefulsets.apps "j" is forbidden: User "system:…" cannot patch …`."""
        return ' is forbidden: User "' in self.message and " cannot " in self.message


class Gone(KubeError):
    """410."""


class NotAuthenticated(KubeError):
    """401."""


class Transient(KubeError):
    """No answer, or one that may be another in a moment."""
