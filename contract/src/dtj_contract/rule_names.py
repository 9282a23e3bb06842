"""The reasons and signals that a rule of spec.restart.rules may name. Python 3.9, as dtj_contract.names."""

from __future__ import annotations

from dtj_contract.names import Reason

# The reasons that a failure can have when the rules are read.
RULE_REASONS = (
    Reason.WORKER_FAILED, Reason.OOM_KILLED, Reason.WORKER_STUCK, Reason.AGENT_CRASHED, Reason.AGENT_TERMINATED,
    Reason.CONNECTION_LOST, Reason.POD_LOST, Reason.POD_DELETED, Reason.POD_EVICTED, Reason.PREEMPTED, Reason.NODE_LOST,
    Reason.NO_RESTART_EXIT_CODE, Reason.ENTRYPOINT_NOT_FOUND, Reason.IMPORT_FAILED, Reason.SCRIPT_ERROR,
    Reason.USAGE_ERROR, Reason.FILE_NOT_FOUND, Reason.WORKER_HUNG, Reason.STRAGGLER,
)  # fmt: skip
RULE_SIGNALS = (
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSEGV",
    "SIGSYS", "SIGTERM", "SIGTRAP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGXFSZ",
)  # fmt: skip
MAX_RULES = 32
