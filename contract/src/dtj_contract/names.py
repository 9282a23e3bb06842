"""Every name that two parts share, once: API group, labels, environment, paths, ports, limits, reasons.

The agent needs only Python 3.9 and the standard library, so this module does too. All other parts import this module,
and none of them can spell a name differently.
"""

# --- API --------------------------------------------------------------------------------------------------------------
GROUP = "training.dtj.dev"
VERSION = "v1alpha1"
API_VERSION = GROUP + "/" + VERSION
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
SINGULAR = "distributedtrainingjob"
SHORT_NAME = "dtj"
RUNTIME_KIND = "DistributedTrainingRuntime"
RUNTIME_PLURAL = "distributedtrainingruntimes"
RUNTIME_SINGULAR = "distributedtrainingruntime"
RUNTIME_SHORT_NAME = "dtr"

# --- labels and annotations of the objects that the operator creates --------------------------------------------------
MANAGER = "dtj-operator"  # also the field manager of every apply
CONTROLLER = GROUP + "/" + MANAGER  # the operator in spec.managedBy
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"  # Kueue's, on the StatefulSet without --kueue
LABEL_NAME = "app.kubernetes.io/name"
LABEL_JOB = GROUP + "/job-name"
LABEL_POD_INDEX = "apps.kubernetes.io/pod-index"  # set by the StatefulSet controller
# All annotations are on the StatefulSet. The spec hash digests the part of the spec that shapes pods.
ANNOTATION_SPEC_HASH = GROUP + "/spec-hash"
# The image that the agent of its pods comes from; all its pods have the same.
ANNOTATION_AGENT_IMAGE = GROUP + "/agent-image"
# The generation of the StatefulSet when the operator last reverted an edit of it.
ANNOTATION_REPAIRED = GROUP + "/repaired-generation"
# When the operator last woke the StatefulSet controller, because pods were missing.
ANNOTATION_NUDGED = GROUP + "/nudged"
# A digest of the agents' key, which shows the master key that it was derived from.
ANNOTATION_AGENT_KEY = GROUP + "/agent-key"
# A digest of the NetworkPolicy that the job was given.
ANNOTATION_NETWORK_POLICY = GROUP + "/network-policy"
# On the pod template and its pods: the nodes that they avoid, separated by commas.
ANNOTATION_AVOIDED_NODES = GROUP + "/avoided-nodes"
# Where Kueue has placed the pods of an admitted job: JSON, fixed for one run of the pods.
ANNOTATION_PLACEMENT = GROUP + "/placement"

# --- other schedulers -------------------------------------------------------------------------------------------------
KUEUE_API_VERSION = "kueue.x-k8s.io/v1beta2"
POD_SET = "main"  # the only pod set of a job's Workload
LABEL_POD_GROUP = "scheduling.x-k8s.io/pod-group"  # of scheduler-plugins, on pods
ANNOTATION_VOLCANO_GROUP = "scheduling.k8s.io/group-name"  # of Volcano, on pods

# --- label and annotation of the Lease by which an installation claims its namespaces ---------------------------------
LABEL_CLAIM = GROUP + "/claim"
ANNOTATION_NAMESPACES = GROUP + "/namespaces"  # separated by commas, or * for all

# --- names inside the pod ---------------------------------------------------------------------------------------------
CONTAINER = "trainer"  # the container that runs the agent
INIT_CONTAINER = "dtj-agent"  # copies the agent's zipapp into the pod
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
SECRET_KEY = "key"  # in the Secret's data: the file is SECRET_DIR/key
DEFAULT_CHECKPOINT_DIR = "/checkpoints"
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_BYTES = 4096  # the kubelet's limit of a termination message
LOG_TAIL_BYTES = 2048
AGENT_PORT = 29400
AGENT_PORT_NAME = "dtj-agent"

# --- environment: operator -> agent -----------------------------------------------------------------------------------
ENV_JOB = "DTJ_JOB"
ENV_JOB_UID = "DTJ_JOB_UID"
ENV_NAMESPACE = "DTJ_NAMESPACE"
ENV_REPLICAS = "DTJ_REPLICAS"
ENV_SPARES = "DTJ_SPARES"  # pods beyond the replicas, warm and idle
ENV_MIN_REPLICAS = "DTJ_MIN_REPLICAS"  # of an elastic job
ENV_MAX_REPLICAS = "DTJ_MAX_REPLICAS"
ENV_ELASTIC_WAIT = "DTJ_ELASTIC_WAIT_SECONDS"
ENV_ELASTIC_BATCH = "DTJ_ELASTIC_BATCH"  # Global or PerRank; for the workers too
ENV_ELASTIC_LEARNING_RATE = "DTJ_ELASTIC_LEARNING_RATE"  # Keep, Linear or Sqrt; for the workers too
ENV_PROCESSES_PER_POD = "DTJ_PROCESSES_PER_POD"
ENV_ORDINAL = "DTJ_ORDINAL"
ENV_POD_NAME = "DTJ_POD_NAME"
ENV_POD_IP = "DTJ_POD_IP"
ENV_NODE_NAME = "DTJ_NODE_NAME"
# A template such as "digits-{}.digits:29400", or a comma-separated list of host:port by ordinal.
ENV_PEERS = "DTJ_PEERS"
ENV_LISTEN = "DTJ_LISTEN"  # host:port that the agent serves on
ENV_ATTEMPT_FLOOR = "DTJ_ATTEMPT_FLOOR"  # the first attempt's number is at least this
ENV_MAX_RESTARTS = "DTJ_MAX_RESTARTS"
ENV_RESTART_WINDOW = "DTJ_RESTART_WINDOW_SECONDS"
ENV_MAX_WITHOUT_PROGRESS = "DTJ_MAX_RESTARTS_WITHOUT_PROGRESS"
ENV_RESTART_RULES = "DTJ_RESTART_RULES"  # JSON: spec.restart.rules
ENV_GENERATION = "DTJ_GENERATION"  # of the job when its pods were created
ENV_BACKEND = "DTJ_BACKEND"
ENV_ENGINE = "DTJ_ENGINE"  # spec.engine
DEFAULT_ENGINE = "torch"
ENV_SECRET_FILE = "DTJ_SECRET_FILE"
ENV_STATE_DIR = "DTJ_STATE_DIR"
ENV_TERMINATION_LOG = "DTJ_TERMINATION_LOG"
# SIGTERM to SIGKILL of the workers, when the pod terminates and when the group has failed.
ENV_GRACE_SECONDS = "DTJ_GRACE_SECONDS"
ENV_STOP_GRACE_SECONDS = "DTJ_STOP_GRACE_SECONDS"
ENV_RENDEZVOUS_TIMEOUT = "DTJ_RENDEZVOUS_TIMEOUT_SECONDS"
ENV_HANG_POLICY = "DTJ_HANG_POLICY"  # Restart, Report or Off
ENV_HANG_MIN_SECONDS = "DTJ_HANG_MIN_SECONDS"
ENV_PROGRESS_DEADLINE = "DTJ_PROGRESS_DEADLINE_SECONDS"
ENV_SUCCESS_POLICY = "DTJ_SUCCESS_POLICY"
SUCCESS_ALL, SUCCESS_RANK_0 = "AllRanks", "Rank0"
# Modules that the warm process imports beside torch, separated by commas; and whether there is one.
ENV_PRELOAD = "DTJ_PRELOAD"
ENV_WARM_WORKERS = "DTJ_WARM_WORKERS"
WARM_AUTO, WARM_NEVER = "Auto", "Never"
# Whether the agent takes the progress that Kubeflow's clients send; and the variables by which these find a server.
ENV_KUBEFLOW_PROGRESS = "DTJ_KUBEFLOW_PROGRESS"
KUBEFLOW_AUTO, KUBEFLOW_NEVER = "Auto", "Never"
KUBEFLOW_URL = "KUBEFLOW_TRAINER_SERVER_URL"
KUBEFLOW_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # a file
# --- environment: dtj run -> agent (a pod on this machine) ------------------------------------------------------------
ENV_DIE_WITH_PARENT = "DTJ_DIE_WITH_PARENT"  # a pid: end when that process, the agent's parent, does
# "<job uid>/<pod uid>": marks every process of the pod, in place of a cgroup.
ENV_LOCAL_POD = "DTJ_LOCAL_POD"
# --- environment: operator -> agent -> worker -------------------------------------------------------------------------
ENV_CHECKPOINT_DIR = "DTJ_CHECKPOINT_DIR"
ENV_CHECKPOINT_EVERY = "DTJ_CHECKPOINT_EVERY_STEPS"
ENV_CHECKPOINT_KEEP = "DTJ_CHECKPOINT_KEEP"
# --- environment: agent -> worker (in addition to torchrun's) ---------------------------------------------------------
ENV_ATTEMPT = "DTJ_ATTEMPT"
ENV_AGENT_SOCKET = "DTJ_AGENT_SOCKET"  # unix datagram socket for progress reports
# The file in which a worker registers for stack dumps (dtj_contract.stack_dump).
ENV_STACK_FILE = "DTJ_STACK_FILE"
# The time at which the agent started the attempt's workers, in seconds of CLOCK_BOOTTIME: a worker's process may be
# older, because it was forked ahead.
ENV_STARTED_AT = "DTJ_STARTED_AT"
TORCHRUN_ENV = (
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip

# --- files in DTJ_CHECKPOINT_DIR, the job's own folder on the checkpoint volume ---------------------------------------
# The lease: decimal number of the attempt that may write. The coordinator writes it before each start.
LEASE_FILE = "attempt"
LOG_FOLDER = "logs"  # <pod>.log, rotated
CHECKPOINT_FOLDER = "step-%08d"  # a committed checkpoint, by its step
# Step and attempt of a checkpoint that is being written, or that a killed writer has left behind.
CHECKPOINT_INCOMPLETE = ".incomplete-step-%08d-a%d"
# Step of a torn checkpoint, and the attempt that found it invalid and set it aside.
CHECKPOINT_TORN = ".torn-step-%08d-a%d"
MANIFEST_FILE = "manifest.json"
# One JSON object per logged step, appended by rank 0: attempt, step, loss, ...
METRICS_FILE = "metrics.jsonl"

# --- files in shared memory -------------------------------------------------------------------------------------------
SHM_DIR = "/dev/shm"  # noqa: S108 (every rank of a pod sees it, and nobody else)
# One pod's memory snapshots, by the job's uid and the pod's ordinal (under dtj run: the pod's uid).
SNAPSHOT_FOLDER = "dtj-%s-%s"

# --- files in the state dir of an agent -------------------------------------------------------------------------------
STATE_FILE = "state.json"  # what an agent needs after a restart of its container
OUTCOME_FILE = "outcome.json"
SOCKET_FILE = "agent.sock"
STACK_FOLDER = "stacks"
KUBEFLOW_TOKEN_FILE = "kubeflow-token"

# --- the agents' protocol: times --------------------------------------------------------------------------------------
HEARTBEAT_SECONDS = 1.0
# A peer is lost after this silence, or at once when its connection closes.
PEER_DEAD_SECONDS = 5.0
CONNECT_SECONDS = 3.0  # deadline of a connection attempt
# From accept to a proven secret, or to the end of an HTTP request.
HANDSHAKE_SECONDS = 5.0
# The first and the longest pause before a peer is called again; the pause doubles, with jitter.
RETRY_MIN_SECONDS = 0.05
RETRY_MAX_SECONDS = 1.0
ANNOUNCE_SECONDS = 1.0  # between two rounds of calls to missing peers
ANNOUNCE_FANOUT = 8  # peers that a member without a coordinator calls in one round
ANNOUNCE_AT_ONCE = 32  # concurrent calls of the coordinator
# SIGTERM to SIGKILL of the workers of a failed group, unless restart.stopGraceSeconds is set.
STOP_GRACE_SECONDS = 0.5
# A worker that catches this signal shows that its SIGTERM handler can't save alone: all ranks must save together.
# The C library keeps the real-time signals for programs, and scripts hardly use this one.
COLLECTIVE_STOP_SIGNAL = 61
# The warm process: how long one module may take to import, and how long an attempt waits for the imports
# (a plain start would have to import the same, once for each rank).
WARM_IMPORT_SECONDS = 60.0
WARM_WAIT_SECONDS = 120.0
WARM_FORK_SECONDS = 10.0  # from a request to the pid of every rank
WARM_LOOK_SECONDS = 1.0  # between two looks whether a signal has stopped the warm process
# The pause before a warm process that ended is replaced doubles; after this many in a row there is none.
WARM_RETRY_SECONDS = 0.5
WARM_TRIES = 4
WARM_LIVED_SECONDS = 300.0  # an end after this is not one in a row
# A worker that is alive this long after SIGKILL is stuck (uninterruptible sleep): its pod must be replaced.
STUCK_SECONDS = 30.0
# The formation of a group. The first pods may wait for a pull of their image.
# For which an elastic job waits at least before its first attempt is smaller than wanted.
FIRST_START_SECONDS = 60.0
# For which a new coordinator waits for the pods that may know a later attempt, or its success.
TAKEOVER_SECONDS = 10.0
# For which an agent has been ready before a running group grows by it: its first heartbeat follows its hello.
READY_SECONDS = 0.5
GROW_SECONDS = 600.0  # longest wait of a growth for the next checkpoint
SCALE_DOWN_SECONDS = 30.0  # longest wait of a smaller size for the next checkpoint
RESIZE_SECONDS = 60.0  # between two growths
MAX_PODS = 1024  # of a job, as the API limits it
# The state of a member with stuck workers in /status: the operator deletes its pod.
MEMBER_STUCK = "stuck"
# How long a group, one of whose rules names OOMKilled, waits for the cause of an agent's crash.
CRASH_CAUSE_SECONDS = 5.0
# A lease that is not written after this time is reported as the reason for waiting.
LEASE_DEADLINE_SECONDS = 10.0
LEASE_RETRY_SECONDS = 1.0
FAREWELL_SECONDS = 5.0  # how long the coordinator waits until all members have the outcome
# The agent with rank 0 forwards progress this often; the others forward it with their heartbeat.
PROGRESS_SECONDS = 0.2
# Between two looks at the state of the workers' processes.
PROCESS_STATE_SECONDS = 0.1
# How long the coordinator waits for the stacks of a group that hangs, and a member for its ranks'.
STACKS_SECONDS = 5.0
STACK_SECONDS = 3.0
STEP_PAGE_SECONDS = 0.5  # between two readings of the optimizer steps that forked workers count
SAVES_SECONDS = 10.0  # between two scans for checkpoints that a script does not report
# How long a log that accepts nothing blocks its workers; after that their lines are dropped.
BACK_PRESSURE_SECONDS = 1.0

# --- the agents' protocol: sizes --------------------------------------------------------------------------------------
MAX_FRAME_BYTES = 256 * 1024
# Of log tails in one message: JSON makes up to 12 bytes of a character, and MAX_FRAME_BYTES must hold.
MAX_EVIDENCE_CHARS = 16 * 1024
MAX_RANKS_OF_POD = 64  # the bound of spec.processesPerPod
MAX_STACK_CHARS = 2048  # of a hung rank, in the status
MAX_STRAGGLERS = 16  # in the status
# Of events, failures and recoveries; a hello holds an outcome with a failure beside them.
MAX_HISTORY_BYTES = 96 * 1024
MAX_HTTP_BYTES = 8 * 1024
MAX_SEND_BUFFER_BYTES = 2 * 1024 * 1024  # a peer with more unread bytes counts as dead
# Plus two for each replica, because all members may dial at once.
MAX_UNPROVEN_CONNECTIONS = 64
MAX_UNPROVEN_OF_SOURCE = 16  # of one address, while there is no room for all
MAX_DATAGRAM_BYTES = 64 * 1024
MAX_LINE_BYTES = 16 * 1024  # longer lines of a worker are split
# Log lines that wait for a slow disk; beyond this they are dropped and counted.
MAX_LOG_BACKLOG_BYTES = 1024 * 1024
# From here on workers wait. One read with its prefixes fits in above this.
FULL_LOG_BACKLOG_BYTES = MAX_LOG_BACKLOG_BYTES // 4
LOG_ROTATE_BYTES = 10_000_000
# The range of MASTER_PORT: from here to below the kernel's ephemeral ports, so no outgoing connection takes one.
MASTER_PORT_FLOOR = 20000

# --- the group's memory and its limits --------------------------------------------------------------------------------
KEEP_FAILURES = 5
KEEP_RECOVERIES = 10
KEEP_EVENTS = 20
# Attempts in a row that end with FileNotFound; at most KEEP_FAILURES, which count them.
FILE_NOT_FOUND_TRIES = 5
# An attempt that lived longer has shown that its script works, whether the script reports steps or not.
EARLY_SECONDS = 30.0
# The keys of a recovery's `seconds`, in order.
RECOVERY_PHASES = ("detect", "stop", "schedule", "rendezvous", "load", "firstStep")

# --- exit codes -------------------------------------------------------------------------------------------------------
# A worker's request not to be restarted, as in nvidia-resiliency-ext's launcher.
EXIT_NO_RESTART = 93
EXIT_TERMINATED = 143  # the agent, terminated before there was an outcome

# --- conditions -------------------------------------------------------------------------------------------------------
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"
RUNNING = "Running"
RESTARTING = "Restarting"
PENDING = "Pending"  # a phase only: there is no condition Pending
# Beside the others: the pods continue, and the operator can't do what the spec requests.
STALLED = "Stalled"
# Beside the others: the pods run, and no agent of theirs answers the operator.
AGENT_UNREACHABLE = "AgentUnreachable"
CONDITIONS = (COMPLETE, FAILED, SUSPENDED, RUNNING, RESTARTING)


class Reason:
    """The reasons of conditions and events, which are also metric labels."""

    # life of a job
    CREATED = "ChildrenCreated"
    LAUNCHER_REMOVED = "LauncherRemoved"  # the agents start the ranks instead of torchrun, for example
    LAUNCHER_KEPT = "LauncherKept"
    PODS_PENDING = "PodsPending"
    UNSCHEDULABLE = "Unschedulable"
    # Kueue has not admitted the job, or a scheduling gate holds the pods back
    QUEUED = "Queued"
    # Kueue takes the quota back: the pods are deleted, and the job queues again.
    EVICTED_BY_QUEUE = "EvictedByQueue"
    HALF_PLACED = "HalfPlaced"  # pods gave nodes back, because others found none
    VOLUME_CLAIM_NOT_FOUND = "VolumeClaimNotFound"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    INIT_CONTAINER_FAILED = "InitContainerFailed"
    MOUNT_PENDING = "MountPending"  # a pod has had no volumes or no network for a minute
    NODE_SILENT = "NodeSilent"  # a node has not begun to start a pod for a minute
    POD_REJECTED = "PodRejected"  # by the kubelet of its node (OutOfcpu); the pod is recreated
    RENDEZVOUS = "Rendezvous"
    WORKERS_RUNNING = "WorkersRunning"
    AGENT_UNREACHABLE = "AgentUnreachable"  # pods run, but no agent has answered for a minute
    # why: the agents reject the operator's key, or something else answers at their port
    AGENT_REFUSED = "AgentRefused"
    AGENT_INVALID = "AgentInvalid"
    JOB_SUSPENDED = "JobSuspended"
    JOB_RESUMED = "JobResumed"
    SUCCEEDED = "AllWorkersSucceeded"
    RANK_0_SUCCEEDED = "Rank0Succeeded"  # successPolicy: Rank0
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
    CONNECTION_LOST = "ConnectionLost"  # the same agent came back: a network failure
    # SIGTERM ended the agent, and its pod stayed: a script that signals its parent, a liveness probe.
    AGENT_TERMINATED = "AgentTerminated"
    # SIGKILL did not end a worker: uninterruptible sleep, as on a dead volume or driver.
    WORKER_STUCK = "WorkerStuck"
    # No step, no sign of life, or a rank that a signal has stopped.
    WORKER_HUNG = "WorkerHung"
    # No rank has shown any sign of life for long, in a phase that nothing bounds.
    NO_SIGN_OF_LIFE = "NoSignOfLife"
    NODE_AVOIDED = "NodeAvoided"  # repeated failures on one node: its pods are recreated elsewhere
    NODE_ALLOWED = "NodeAllowed"  # no other node has room
    NODE_SICK = "NodeSick"  # called so by a detector, or cordoned: its pods are recreated elsewhere
    SPARE_USED = "SpareUsed"  # a spare pod has taken the ranks of a lost one
    GROUP_SHRUNK = "GroupShrunk"  # an elastic job continues with fewer pods
    GROUP_GROWN = "GroupGrown"  # an elastic job has taken in more pods
    # events of an agent
    STRAGGLER = "Straggler"  # a rank's own work takes longer than that of the others
    CHECKPOINT_VOLUME_UNAVAILABLE = "CheckpointVolumeUnavailable"
    # events of a trainer
    CHECKPOINT_TORN = "CheckpointTorn"  # skipped: a file is missing, short or altered
    CHECKPOINT_FAILED = "CheckpointFailed"  # a save failed; training continues and tries again
    CHECKPOINT_SLOW = "CheckpointSlow"  # a save was due while the previous one was still being written
    CHECKPOINT_METRIC_MISSING = "CheckpointMetricMissing"  # a save lacks the metric that keep_best reads
    LOSS_NOT_FINITE = "LossNotFinite"  # a loss is NaN or infinite
    LEASE_LOST = "CheckpointLeaseLost"  # a newer attempt owns the folder
    # A file or a tracking server rejected a record; training continues without it.
    SINK_FAILED = "SinkFailed"
    # The state is not kept in memory, because the pod has no room for it.
    SNAPSHOTS_OFF = "SnapshotsOff"
    WORLD_RESIZED = "WorldResized"  # a checkpoint of another world size was loaded
    # why a job failed
    RESTART_BUDGET_SPENT = "RestartBudgetSpent"
    NO_PROGRESS = "NoProgress"  # restart.maxRestartsWithoutProgress
    RESTART_RULE = "RestartRule"  # a rule of restart.rules with action Fail
    NO_RESTART_EXIT_CODE = "NoRestartExitCode"
    ENTRYPOINT_NOT_FOUND = "EntrypointNotFound"
    IMPORT_FAILED = "ImportFailed"
    SCRIPT_ERROR = "ScriptError"  # before the first step: SyntaxError, NameError, a breakpoint
    USAGE_ERROR = "UsageError"  # the script rejected its arguments
    # Before the first step. Retried a few times, because the file may appear later.
    FILE_NOT_FOUND = "FileNotFound"
    RENDEZVOUS_TIMEOUT = "RendezvousTimeout"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    INVALID_SPEC = "InvalidSpec"
    TEMPLATE_REJECTED = "TemplateRejected"
    # why a job waits
    # A quota, an admission plugin or a missing right, for now; the condition quotes the API server.
    CHILD_REFUSED = "ChildRefused"
    # Only the user knows how many ranks, and over which backend.
    ACCELERATOR_UNDECIDED = "AcceleratorUndecided"
    CHILD_CONFLICT = "ChildConflict"  # an object of that name exists and is not ours
    RUNTIME_NOT_FOUND = "RuntimeNotFound"  # spec.runtimeRef
    RUNTIME_INCOMPLETE = "RuntimeIncomplete"  # job and runtime together are no valid job


PERMANENT = frozenset({
    Reason.NO_RESTART_EXIT_CODE, Reason.ENTRYPOINT_NOT_FOUND, Reason.IMPORT_FAILED, Reason.SCRIPT_ERROR,
    Reason.USAGE_ERROR, Reason.INVALID_SPEC, Reason.TEMPLATE_REJECTED,
})  # fmt: skip

# --- restart rules ----------------------------------------------------------------------------------------------------
ACTION_RESTART = "Restart"
ACTION_RESTART_ELSEWHERE = "RestartElsewhere"
ACTION_RESTART_FREE = "RestartFree"
ACTION_FAIL = "Fail"
RULE_ACTIONS = (ACTION_RESTART, ACTION_RESTART_ELSEWHERE, ACTION_RESTART_FREE, ACTION_FAIL)
# Restarts in a row that cost budget, without a new step or checkpoint, before the job fails.
MAX_WITHOUT_PROGRESS = 20
# How long the group waits for the operator to replace the pod of a RestartElsewhere.
ELSEWHERE_SECONDS = 30.0
