"""Every name that two parts share, once: API group, labels, environment, paths, ports, reasons.

It stands in the lowest layer (the agent: standard library only, Python 3.9+), so that the operator, the client and the
trainer can all import it and none of them can spell a name differently.
"""

# --- API -------------------------------------------------------------------------------------------------------------
GROUP = "training.dtj.dev"
VERSION = "v1alpha1"
API_VERSION = GROUP + "/" + VERSION
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
SINGULAR = "distributedtrainingjob"
SHORT_NAME = "dtj"

# --- labels and annotations of the objects that the operator makes ------------------------------------------------
MANAGER = "dtj-operator"  # app.kubernetes.io/managed-by, and the field manager of every server-side apply
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_JOB = GROUP + "/job-name"
ANNOTATION_SPEC_HASH = GROUP + "/spec-hash"  # on the StatefulSet only: digest of the part of the spec that shapes pods
ANNOTATION_AGENT_IMAGE = GROUP + "/agent-image"  # on the StatefulSet: where the agent of its pods is from, all of them alike
ANNOTATION_REPAIRED = GROUP + "/repaired-generation"  # on the StatefulSet: its generation when an edit of it was last undone
ANNOTATION_NUDGED = GROUP + "/nudged"  # on the StatefulSet: when its controller was last woken, because pods were missing
LABEL_POD_INDEX = "apps.kubernetes.io/pod-index"  # set by the StatefulSet controller

# --- names inside the pod -------------------------------------------------------------------------------------------
CONTAINER = "trainer"  # the container of the pod template that runs the agent
INIT_CONTAINER = "dtj-agent"  # puts the agent's zipapp into the pod
VOLUME_AGENT = "dtj-agent"
VOLUME_STATE = "dtj-state"
VOLUME_SECRET = "dtj-secret"
VOLUME_CHECKPOINT = "dtj-checkpoint"
VOLUME_TMP = "dtj-tmp"
VOLUME_SHM = "dtj-shm"
AGENT_DIR = "/dtj/bin"
AGENT_PATH = AGENT_DIR + "/agent.pyz"
STATE_DIR = "/dtj/state"
SECRET_DIR = "/dtj/secret"
SECRET_KEY = "key"  # the key of the Secret's data, so the file is SECRET_DIR/key
DEFAULT_CHECKPOINT_DIR = "/checkpoints"
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_BYTES = 4096  # the kubelet's own limit of a termination message
LOG_TAIL_BYTES = 2048
AGENT_PORT = 29400
AGENT_PORT_NAME = "dtj-agent"

# --- environment: operator -> agent ---------------------------------------------------------------------------------
ENV_JOB = "DTJ_JOB"
ENV_JOB_UID = "DTJ_JOB_UID"
ENV_NAMESPACE = "DTJ_NAMESPACE"
ENV_REPLICAS = "DTJ_REPLICAS"
ENV_PROCESSES_PER_POD = "DTJ_PROCESSES_PER_POD"
ENV_ORDINAL = "DTJ_ORDINAL"
ENV_POD_NAME = "DTJ_POD_NAME"
ENV_POD_IP = "DTJ_POD_IP"
ENV_NODE_NAME = "DTJ_NODE_NAME"
ENV_PEERS = "DTJ_PEERS"  # "digits-{}.digits:29400", or a comma-separated list of host:port by ordinal
ENV_LISTEN = "DTJ_LISTEN"  # host:port that the agent serves on
ENV_ATTEMPT_FLOOR = "DTJ_ATTEMPT_FLOOR"  # the first attempt's number is at least this
ENV_MAX_RESTARTS = "DTJ_MAX_RESTARTS"
ENV_RESTART_WINDOW = "DTJ_RESTART_WINDOW_SECONDS"
ENV_BACKEND = "DTJ_BACKEND"
ENV_SECRET_FILE = "DTJ_SECRET_FILE"
ENV_STATE_DIR = "DTJ_STATE_DIR"
ENV_TERMINATION_LOG = "DTJ_TERMINATION_LOG"
ENV_GRACE_SECONDS = "DTJ_GRACE_SECONDS"  # SIGTERM to SIGKILL of the workers
ENV_STOP_GRACE_SECONDS = "DTJ_STOP_GRACE_SECONDS"  # the same, of a group that failed
ENV_RENDEZVOUS_TIMEOUT = "DTJ_RENDEZVOUS_TIMEOUT_SECONDS"
# --- environment: dtj run -> agent (a pod on this machine) ----------------------------------------------------------
ENV_DIE_WITH_PARENT = "DTJ_DIE_WITH_PARENT"  # "1": the agent and its workers end if the process that started them does
ENV_LOCAL_POD = "DTJ_LOCAL_POD"  # "<job uid>/<pod uid>": marks every process of the pod, in place of a cgroup
# --- environment: operator -> agent -> worker ---------------------------------------------------------------------
ENV_CHECKPOINT_DIR = "DTJ_CHECKPOINT_DIR"
ENV_CHECKPOINT_EVERY = "DTJ_CHECKPOINT_EVERY_STEPS"
ENV_CHECKPOINT_KEEP = "DTJ_CHECKPOINT_KEEP"
# --- environment: agent -> worker (beside what torchrun sets) ----------------------------------------------------
ENV_ATTEMPT = "DTJ_ATTEMPT"
ENV_AGENT_SOCKET = "DTJ_AGENT_SOCKET"  # unix datagram socket for progress reports
TORCHRUN_ENV = (
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip

# --- files in DTJ_CHECKPOINT_DIR, the job's own folder on the checkpoint volume ------------------------------------
LEASE_FILE = "attempt"  # decimal number of the attempt that may write; written by the coordinator before each start
LOG_FOLDER = "logs"  # <pod>.log, rotated
CHECKPOINT_FOLDER = "step-%08d"  # a committed checkpoint, by the step that it holds
CHECKPOINT_INCOMPLETE = ".incomplete-step-%08d-a%d"  # step, attempt: being written, or left behind by a killed writer
CHECKPOINT_TORN = ".torn-step-%08d-a%d"  # step, attempt that found it invalid and put it aside
MANIFEST_FILE = "manifest.json"
METRICS_FILE = "metrics.jsonl"  # one JSON object per logged step, appended by rank 0: attempt, step, loss, ...

# --- files in the state dir of an agent ----------------------------------------------------------------------------
STATE_FILE = "state.json"  # what an agent must know after a restart of its container
OUTCOME_FILE = "outcome.json"
SOCKET_FILE = "agent.sock"

# --- the agents' protocol: seconds and bytes ------------------------------------------------------------------------
HEARTBEAT_SECONDS = 1.0
PEER_DEAD_SECONDS = 5.0  # silence after which a peer is lost (a closed connection says so at once)
CONNECT_SECONDS = 3.0  # a connection attempt's deadline
HANDSHAKE_SECONDS = 5.0  # from accept to a proven secret, or to the end of an HTTP request
RETRY_MIN_SECONDS = 0.05  # first pause before a peer is called again; doubles, with jitter
RETRY_MAX_SECONDS = 1.0
ANNOUNCE_SECONDS = 1.0  # between two rounds of calls to peers that are missing
ANNOUNCE_FANOUT = 8  # peers called in one round by a member that can't find the coordinator
ANNOUNCE_AT_ONCE = 32  # calls of the coordinator under way at one time
STOP_GRACE_SECONDS = 0.5  # SIGTERM to SIGKILL of the workers of a failed group, where restart.stopGraceSeconds says nothing
STUCK_SECONDS = 30.0  # a worker still there this long after SIGKILL (uninterruptible sleep): its pod has to be replaced
MEMBER_STUCK = "stuck"  # the state of such a member in /status: the operator deletes its pod
LEASE_DEADLINE_SECONDS = 10.0  # after that a lease that is not written yet is reported as the reason for waiting
LEASE_RETRY_SECONDS = 1.0
FAREWELL_SECONDS = 5.0  # how long the coordinator waits for the others to have the outcome
PROGRESS_SECONDS = 0.2  # the agent with rank 0 forwards progress this often; the others with their heartbeat
MAX_FRAME_BYTES = 256 * 1024
MAX_EVIDENCE_CHARS = 16 * 1024  # of log tails in one message: JSON makes up to 12 bytes of one, and MAX_FRAME_BYTES holds
MAX_HISTORY_BYTES = 96 * 1024  # of events, failures and recoveries; a hello has an outcome with a failure beside it
MAX_HTTP_BYTES = 8 * 1024
MAX_SEND_BUFFER_BYTES = 2 * 1024 * 1024  # more unread than this: the peer is as good as dead
MAX_UNPROVEN_CONNECTIONS = 64  # and two for each replica: all members may dial at once
MAX_UNPROVEN_OF_SOURCE = 16  # of one address, while there is no room for all
MAX_DATAGRAM_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024  # longer lines of a worker are cut into several
MAX_LOG_BACKLOG_BYTES = 1024 * 1024  # log lines that wait for a slow disk; beyond it they are dropped and counted
FULL_LOG_BACKLOG_BYTES = MAX_LOG_BACKLOG_BYTES // 4  # from here on workers wait; one read with its prefixes fits in above it
BACK_PRESSURE_SECONDS = 1.0  # how long a log that takes nothing holds its workers up; then their lines are dropped
LOG_ROTATE_BYTES = 10_000_000
SAVES_SECONDS = 10.0  # between two looks at the files that a script saves and does not report
KEEP_FAILURES = 5
FILE_NOT_FOUND_TRIES = 5  # attempts in a row that end so; not more than KEEP_FAILURES, by which they are counted
EARLY_SECONDS = 30.0  # an attempt that lived longer has shown that its script works, whether it reports steps or not
KEEP_RECOVERIES = 10
KEEP_EVENTS = 20
MASTER_PORT_FLOOR = 20000  # MASTER_PORT: from here to below the kernel's ephemeral ports, so no outgoing connection takes it

# --- exit codes ------------------------------------------------------------------------------------------------------
EXIT_NO_RESTART = 93  # a worker's own word that a restart is of no use (as in nvidia-resiliency-ext's launcher)
EXIT_TERMINATED = 143  # the agent, ended by SIGTERM before there was an outcome

# --- recoveries ------------------------------------------------------------------------------------------------------
RECOVERY_PHASES = ("detect", "stop", "schedule", "rendezvous", "load", "firstStep")  # keys of `seconds`, as they follow

# --- conditions ------------------------------------------------------------------------------------------------------
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"
RUNNING = "Running"
RESTARTING = "Restarting"
PENDING = "Pending"  # a phase only: no condition of that name
STALLED = "Stalled"  # beside the others: what is there goes on, and the operator can't do what the spec asks for
CONDITIONS = (COMPLETE, FAILED, SUSPENDED, RUNNING, RESTARTING)


class Reason:
    """Event reason = condition reason = metric label."""

    # life of a job
    CREATED = "ChildrenCreated"
    PODS_PENDING = "PodsPending"
    UNSCHEDULABLE = "Unschedulable"
    VOLUME_CLAIM_NOT_FOUND = "VolumeClaimNotFound"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    RENDEZVOUS = "Rendezvous"
    WORKERS_RUNNING = "WorkersRunning"
    AGENT_UNREACHABLE = "AgentUnreachable"  # pod 0 runs, and its agent has not answered the operator for a minute
    JOB_SUSPENDED = "JobSuspended"
    JOB_RESUMED = "JobResumed"
    SUCCEEDED = "AllWorkersSucceeded"
    TTL_EXPIRED = "TTLExpired"
    # why a group restarted
    WORKER_FAILED = "WorkerFailed"
    OOM_KILLED = "OOMKilled"
    POD_LOST = "PodLost"
    POD_DELETED = "PodDeleted"
    POD_EVICTED = "PodEvicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    AGENT_CRASHED = "AgentCrashed"
    CONNECTION_LOST = "ConnectionLost"  # the same agent came back: a network failure, no pod was touched
    # events
    WORKER_STUCK = "WorkerStuck"  # SIGKILL did not end it: uninterruptible sleep, as on a dead volume or driver
    CHECKPOINT_VOLUME_UNAVAILABLE = "CheckpointVolumeUnavailable"
    # what a trainer reports as an event
    CHECKPOINT_TORN = "CheckpointTorn"  # skipped: a file is missing, short or altered
    CHECKPOINT_FAILED = "CheckpointFailed"  # a save failed; training goes on and tries again
    CHECKPOINT_SLOW = "CheckpointSlow"  # a save was due while the one before was still being written
    CHECKPOINT_METRIC_MISSING = "CheckpointMetricMissing"  # keep_best looks at a metric that a save does not have
    LOSS_NOT_FINITE = "LossNotFinite"  # a loss is NaN or infinite
    LEASE_LOST = "CheckpointLeaseLost"  # a newer attempt owns the folder
    SINK_FAILED = "SinkFailed"  # a place for records (a file, a tracking server) refused one; training goes on without it
    WORLD_RESIZED = "WorldResized"  # a checkpoint of another world size was loaded
    # why a job failed
    RESTART_BUDGET_SPENT = "RestartBudgetSpent"
    NO_RESTART_EXIT_CODE = "NoRestartExitCode"
    ENTRYPOINT_NOT_FOUND = "EntrypointNotFound"
    IMPORT_FAILED = "ImportFailed"
    SCRIPT_ERROR = "ScriptError"  # Python refused it before its first step: SyntaxError, NameError, a breakpoint
    USAGE_ERROR = "UsageError"  # the script refused its arguments
    FILE_NOT_FOUND = "FileNotFound"  # before the first step: it may be there later, so it is tried a few times
    RENDEZVOUS_TIMEOUT = "RendezvousTimeout"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    INVALID_SPEC = "InvalidSpec"
    TEMPLATE_REJECTED = "TemplateRejected"
    CHILD_REFUSED = "ChildRefused"  # a quota, an admission plugin or a missing right, for now: the condition has its words
    ACCELERATOR_UNDECIDED = "AcceleratorUndecided"  # how many ranks, over which backend: only the user knows
    CHILD_CONFLICT = "ChildConflict"  # an object of that name exists and is not ours


PERMANENT = frozenset({
    Reason.NO_RESTART_EXIT_CODE, Reason.ENTRYPOINT_NOT_FOUND, Reason.IMPORT_FAILED, Reason.SCRIPT_ERROR, Reason.USAGE_ERROR,
    Reason.INVALID_SPEC, Reason.TEMPLATE_REJECTED,
})  # fmt: skip
