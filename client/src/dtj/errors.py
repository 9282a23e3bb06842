"""The errors of dtj. Each message is one line that ends with what to do about it.

DtjError                     exit code 1
├── InputError               2: the file or the flags are wrong; the message names the field
├── ClusterError             1: the cluster could not be reached, or rejected the request
│   ├── NoCluster            no kubeconfig, or no answer from its address
│   │   └── Busy             an answer that asks to try again
│   ├── NotInstalled         the cluster does not know DistributedTrainingJob
│   └── JobNotFound             no such job
├── LocalRunError            1: this machine can't run the job
└── WaitTimeout              124: `dtj wait` timed out, as timeout(1) does
"""


class DtjError(Exception):
    """An error that dtj reports in one line instead of a traceback."""

    exit_code = 1


class InputError(DtjError):
    """The file or the flags are wrong."""

    exit_code = 2


class ClusterError(DtjError):
    """The cluster could not be reached, or rejected the request."""


class NoCluster(ClusterError):
    """No kubeconfig, or no answer from the address in it."""


class Busy(NoCluster):
    """The API server, or a proxy in front of it, can't answer now (429, 500, 502, 503, 504)."""


class NotInstalled(ClusterError):
    """The cluster does not know the kind DistributedTrainingJob."""


class JobNotFound(ClusterError):
    """There is no job of that name in that namespace."""


class LocalRunError(DtjError):
    """This machine can't run the job."""


class WaitTimeout(DtjError):
    """The condition did not become true in time."""

    exit_code = 124
