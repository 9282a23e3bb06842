"""What dtj tells its user when it can't do what was asked. One line each, and what to do about it.

DtjError                     exit code 1
├── InputError               2: the file or the flags are wrong; the message names the field
├── ClusterError             1: the cluster could not be asked, or said no
│   ├── NoCluster            no kubeconfig, or nothing answers at its address
│   ├── NotInstalled         the cluster does not know DistributedTrainingJob
│   └── JobNotFound             no such job
├── LocalRunError            1: this machine can't carry the job out
└── WaitTimeout              124: `dtj wait` gave up, as timeout(1) does
"""


class DtjError(Exception):
    """Anything that dtj reports in one line instead of a traceback."""

    exit_code = 1


class InputError(DtjError):
    """The file or the flags are wrong."""

    exit_code = 2


class ClusterError(DtjError):
    """The cluster could not be asked, or said no."""


class NoCluster(ClusterError):
    """No kubeconfig, or nothing answers at the address in it."""


class NotInstalled(ClusterError):
    """The cluster does not know the kind DistributedTrainingJob."""


class JobNotFound(ClusterError):
    """No job of that name in that namespace."""


class LocalRunError(DtjError):
    """This machine can't carry the job out."""


class WaitTimeout(DtjError):
    """The condition that was waited for did not come in time."""

    exit_code = 124
