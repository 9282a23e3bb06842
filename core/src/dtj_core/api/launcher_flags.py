"""The flags of torchrun, accelerate launch, deepspeed, composer and horovodrun, and what becomes of each. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_RESTARTS = "spec.restart.maxRestarts"
RESTARTS_TEXT = f"{MAX_RESTARTS}, counted within spec.restart.windowSeconds; the largest limit of the file counts"
RENDEZVOUS = "the agents of the pods find each other and set MASTER_ADDR, MASTER_PORT and RANK"


class How(enum.Enum):
    """Fate of a field of the input."""

    SAME = "carried over"
    OTHER = "in another form"
    NOT_NEEDED = "not needed"
    NOT_CARRIED = "not carried over"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True)
class Flag:
    """A flag of a launcher, with `_` for every `-` inside its name; `*` at its end stands for all that begin so."""

    name: str
    how: How
    text: str
    bare: bool = False
    """Whether the flag stands without a value."""
    pair: bool = False
    """Whether the flag takes two values."""
    keep: bool = False
    """Whether the launcher itself must run, because only the launcher acts on the flag."""
    counts: bool = False
    """Whether the value is a file that holds the number of pods."""
    env: str = ""
    """Variable of the workers that carries the value; a bare flag sets it to true."""


NODES = Flag("nnodes", How.OTHER, "spec.replicas; MIN:MAX becomes spec.elastic {minReplicas, maxReplicas}")
PROCESSES = Flag(
    "nproc_per_node", How.OTHER, "spec.processesPerPod; auto and gpu are its default, one rank for each GPU"
)
RESTARTS = Flag("max_restarts", How.OTHER, RESTARTS_TEXT)
MODULE = Flag("module", How.OTHER, "spec.entrypoint.module", bare=True)
NO_PYTHON = Flag("no_python", How.OTHER, "the command of the container", bare=True)
_LOGS = "the agent writes each rank's output to the pod's log: read it with dtj logs --rank N"

TORCHRUN = (
    NODES,
    PROCESSES,
    RESTARTS,
    MODULE,
    NO_PYTHON,
    Flag("standalone", How.NOT_NEEDED, RENDEZVOUS, bare=True),
    *(
        Flag(name, How.NOT_NEEDED, RENDEZVOUS)
        for name in (
            "rdzv_backend",
            "rdzv_endpoint",
            "rdzv_id",
            "rdzv_conf",
            "node_rank",
            "master_addr",
            "master_port",
            "local_addr",
        )
    ),
    Flag("monitor_interval", How.NOT_NEEDED, "the agent notices the end of a process at once"),
    Flag("start_method", How.NOT_NEEDED, "the agent starts or forks the ranks: spec.warmWorkers"),
    Flag("role", How.NOT_NEEDED, "ROLE_NAME is default"),
    Flag("run_path", How.NOT_CARRIED, "name the script itself", bare=True),
    Flag("log_dir", How.NOT_CARRIED, _LOGS),
    Flag("redirects", How.NOT_CARRIED, _LOGS),
    Flag("tee", How.NOT_NEEDED, _LOGS),
    Flag("local_ranks_filter", How.NOT_CARRIED, _LOGS),
    Flag("duplicate_stdout_filters", How.NOT_CARRIED, _LOGS),
    Flag("duplicate_stderr_filters", How.NOT_CARRIED, _LOGS),
    Flag("logs_specs", How.NOT_CARRIED, _LOGS),
    Flag("use_env", How.NOT_NEEDED, "ranks always read LOCAL_RANK from the environment", bare=True),
    Flag("use_agent_store", How.NOT_NEEDED, "the agent serves the store"),
    Flag("event_log_handler", How.NOT_CARRIED, "restarts are events of the job: kubectl describe"),
    Flag("signals_to_handle", How.NOT_NEEDED, "the agent passes SIGTERM on"),
    Flag("shutdown_timeout", How.NOT_CARRIED, "set spec.restart.stopGraceSeconds"),
    Flag("numa_binding", How.NOT_CARRIED, "bind in the script, or with the kubelet's topology manager"),
    Flag("virtual_local_rank", How.NOT_CARRIED, "set CUDA_VISIBLE_DEVICES in the script", bare=True),
)

_PLUGIN = "only the launcher acts on it, so accelerate launch stays: one launcher for each pod"
_TPU = "it has an effect on TPUs alone"
ACCELERATE = (
    Flag("num_processes", How.OTHER, "spec.processesPerPod, divided by the number of machines"),
    Flag("num_machines", How.OTHER, "spec.replicas"),
    RESTARTS,
    MODULE,
    NO_PYTHON,
    Flag("multi_gpu", How.NOT_NEEDED, "more than one rank is multi-GPU", bare=True),
    Flag("cpu", How.OTHER, "ACCELERATE_USE_CPU of the workers", bare=True, env="ACCELERATE_USE_CPU"),
    *(
        Flag(name, How.OTHER, f"ACCELERATE_{name.upper()} of the workers", env=f"ACCELERATE_{name.upper()}")
        for name in ("mixed_precision", "dynamo_backend", "dynamo_mode", "gradient_accumulation_steps")
    ),
    *(
        Flag(name, How.OTHER, f"ACCELERATE_{name.upper()} of the workers", bare=True, env=f"ACCELERATE_{name.upper()}")
        for name in ("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation")
    ),
    Flag("num_cpu_threads_per_process", How.OTHER, "OMP_NUM_THREADS of the workers", env="OMP_NUM_THREADS"),
    *(
        Flag(name, How.NOT_NEEDED, RENDEZVOUS)
        for name in (
            "machine_rank",
            "main_process_ip",
            "main_process_port",
            "rdzv_backend",
            "rdzv_conf",
            "deepspeed_multinode_launcher",
        )
    ),
    Flag("same_network", How.NOT_NEEDED, RENDEZVOUS, bare=True),
    Flag("deepspeed_hostfile", How.NOT_NEEDED, RENDEZVOUS, counts=True),
    Flag("mpirun_hostfile", How.NOT_NEEDED, RENDEZVOUS, counts=True),
    Flag("config_file", How.OTHER, _PLUGIN, keep=True, counts=True),
    Flag("use_deepspeed", How.OTHER, _PLUGIN, bare=True, keep=True),
    Flag("use_fsdp", How.OTHER, _PLUGIN, bare=True, keep=True),
    Flag("use_megatron_lm", How.OTHER, _PLUGIN, bare=True, keep=True),
    Flag("use_parallelism_config", How.OTHER, _PLUGIN, bare=True, keep=True),
    Flag("fp8_use_autocast_during_eval", How.OTHER, _PLUGIN, bare=True, keep=True),
    *(
        Flag(name, How.OTHER, _PLUGIN, keep=True)
        for name in (
            "deepspeed_*",
            "zero_stage",
            "zero3_*",
            "offload_*",
            "gradient_clipping",
            "fsdp_*",
            "megatron_lm_*",
            "parallelism_config_*",
            "fp8_*",
        )
    ),
    Flag("gpu_ids", How.NOT_CARRIED, "a pod sees the GPUs that it requests"),
    Flag("monitor_interval", How.NOT_NEEDED, "the agent notices the end of a process at once"),
    Flag("debug", How.NOT_CARRIED, "set ACCELERATE_DEBUG_MODE in the container's env", bare=True),
    Flag("quiet", How.NOT_NEEDED, "the agent prints no traceback of its own", bare=True),
    Flag("role", How.NOT_NEEDED, "ROLE_NAME is default"),
    Flag("tee", How.NOT_NEEDED, _LOGS),
    Flag("log_dir", How.NOT_CARRIED, _LOGS),
    Flag("tpu", How.REFUSED, "jobs run on GPUs or processors: remove it", bare=True),
    *(Flag(name, How.NOT_NEEDED, _TPU) for name in ("vm", "env", "main_training_function")),
    *(
        Flag(name, How.NOT_NEEDED, _TPU, bare=True)
        for name in ("tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16")
    ),
    Flag("aws_*", How.NOT_NEEDED, "it has an effect on SageMaker alone"),
    Flag("use_xpu", How.NOT_CARRIED, "request the accelerator in the container's resources", bare=True),
    Flag("enable_cpu_affinity", How.NOT_CARRIED, "bind in the script", bare=True),
)

_CHOSEN = "pods see the GPUs that they request: set spec.replicas, and the container's nvidia.com/gpu"
DEEPSPEED = (
    Flag("num_nodes", How.OTHER, "spec.replicas"),
    Flag("num_gpus", How.OTHER, "spec.processesPerPod"),
    MODULE,
    NO_PYTHON,
    Flag("hostfile", How.NOT_NEEDED, RENDEZVOUS, counts=True),
    *(
        Flag(name, How.NOT_NEEDED, RENDEZVOUS)
        for name in ("master_addr", "master_port", "node_rank", "launcher", "launcher_args", "ssh_port")
    ),
    Flag("no_ssh", How.NOT_NEEDED, RENDEZVOUS, bare=True),
    Flag("no_ssh_check", How.NOT_NEEDED, RENDEZVOUS, bare=True),
    Flag("force_multi", How.NOT_NEEDED, RENDEZVOUS, bare=True),
    Flag("no_local_rank", How.NOT_NEEDED, "ranks always read LOCAL_RANK from the environment", bare=True),
    Flag("elastic_training", How.OTHER, "spec.elastic, with --min_elastic_nodes and --max_elastic_nodes", bare=True),
    Flag("min_elastic_nodes", How.OTHER, "spec.elastic.minReplicas"),
    Flag("max_elastic_nodes", How.OTHER, "spec.elastic.maxReplicas"),
    Flag("include", How.NOT_CARRIED, _CHOSEN),
    Flag("exclude", How.NOT_CARRIED, _CHOSEN),
    Flag("bind_cores_to_rank", How.NOT_CARRIED, "bind in the script", bare=True),
    Flag("bind_core_list", How.NOT_CARRIED, "bind in the script"),
    Flag("autotuning", How.REFUSED, "run the autotuner by itself, and convert the job with its result"),
    Flag("enable_each_rank_log", How.NOT_CARRIED, _LOGS),
    Flag("save_pid", How.NOT_NEEDED, "the agent owns the processes", bare=True),
    Flag("venv_script", How.NOT_CARRIED, "set PATH in the container's env, or name the Python of the environment"),
    Flag("log_level", How.NOT_NEEDED, "no launcher is left to log"),
    Flag("quiet", How.NOT_NEEDED, "no launcher is left to log", bare=True),
)

_GLOO = "ranks meet by gloo"
_DEFAULT = "it is the default"
HOROVODRUN = (
    Flag("num_proc", How.OTHER, "spec.processesPerPod, times spec.replicas"),
    Flag("slots_per_host", How.OTHER, "spec.processesPerPod"),
    Flag("min_num_proc", How.NOT_CARRIED, "set spec.elastic.minReplicas, in pods"),
    Flag("max_num_proc", How.NOT_CARRIED, "set spec.elastic.maxReplicas, in pods"),
    Flag("hosts", How.NOT_NEEDED, RENDEZVOUS),
    Flag("hostfile", How.NOT_NEEDED, RENDEZVOUS),
    *(
        Flag(name, How.NOT_NEEDED, RENDEZVOUS)
        for name in ("host_discovery_script", "ssh_port", "ssh_identity_file", "start_timeout", "elastic_timeout")
    ),
    Flag("gloo", How.NOT_NEEDED, "the engine horovod uses gloo", bare=True),
    Flag("network_interfaces", How.NOT_CARRIED, "set spec.network.interface"),
    Flag("reset_limit", How.NOT_CARRIED, f"set {MAX_RESTARTS}"),
    Flag("blacklist_cooldown_range", How.NOT_CARRIED, "set spec.restart.avoidNodes", pair=True),
    Flag("disable_cache", How.NOT_NEEDED, "there are no checks by ssh", bare=True),
    Flag("verbose", How.NOT_CARRIED, "set HOROVOD_LOG_LEVEL in the container's env", bare=True),
    Flag("output_filename", How.NOT_CARRIED, _LOGS),
    Flag("prefix_output_with_timestamp", How.NOT_CARRIED, _LOGS, bare=True),
    *(
        Flag(name, How.OTHER, f"{variable} of the workers", env=variable)
        for name, variable in (
            ("timeline_filename", "HOROVOD_TIMELINE"),
            ("cycle_time_ms", "HOROVOD_CYCLE_TIME"),
            ("cache_capacity", "HOROVOD_CACHE_CAPACITY"),
            ("log_level", "HOROVOD_LOG_LEVEL"),
            ("stall_check_warning_time_seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
            ("stall_check_shutdown_time_seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
            ("num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS"),
            ("thread_affinity", "HOROVOD_THREAD_AFFINITY"),
            ("gloo_timeout_seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
        )
    ),
    Flag("fusion_threshold_mb", How.NOT_CARRIED, "set HOROVOD_FUSION_THRESHOLD, in bytes, in the container's env"),
    *(
        Flag(name, How.NOT_CARRIED, f"set {variable} to 1 in the container's env", bare=True)
        for name, variable in (
            ("autotune", "HOROVOD_AUTOTUNE"),
            ("hierarchical_allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
            ("hierarchical_allgather", "HOROVOD_HIERARCHICAL_ALLGATHER"),
            ("torus_allreduce", "HOROVOD_TORUS_ALLREDUCE"),
            ("timeline_mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES"),
            ("no_stall_check", "HOROVOD_STALL_CHECK_DISABLE"),
            ("tcp", "NCCL_IB_DISABLE"),
        )
    ),
    Flag("autotune_*", How.NOT_CARRIED, "set its variable HOROVOD_AUTOTUNE_… in the container's env"),
    *(
        Flag(name, How.NOT_NEEDED, _DEFAULT, bare=True)
        for name in (
            "no_autotune",
            "no_hierarchical_allreduce",
            "no_hierarchical_allgather",
            "no_torus_allreduce",
            "no_timeline_mark_cycles",
            "stall_check",
        )
    ),
    *(
        Flag(name, How.NOT_CARRIED, "set HOROVOD_LOG_HIDE_TIME in the container's env", bare=True)
        for name in ("log_with_timestamp", "log_without_timestamp", "log_hide_timestamp", "no_log_hide_timestamp")
    ),
    Flag("mpi_threads_disable", How.NOT_NEEDED, _GLOO, bare=True),
    Flag("no_mpi_threads_disable", How.NOT_NEEDED, _GLOO, bare=True),
    Flag("binding_args", How.NOT_CARRIED, "bind in the script"),
    Flag("mpi", How.REFUSED, f"{_GLOO}: remove it", bare=True),
    Flag("jsrun", How.REFUSED, f"{_GLOO}: remove it", bare=True),
    Flag("mpi_args", How.REFUSED, f"{_GLOO}: remove it"),
    Flag("config_file", How.REFUSED, "write its settings as variables in the container's env"),
)

COMPOSER = (
    Flag("nproc", How.OTHER, "spec.processesPerPod"),
    Flag("world_size", How.OTHER, "spec.replicas, times spec.processesPerPod"),
    Flag("module_mode", How.OTHER, MODULE.text, bare=True),
    Flag("command_mode", How.OTHER, NO_PYTHON.text, bare=True),
    *(Flag(name, How.NOT_NEEDED, RENDEZVOUS) for name in ("base_rank", "node_rank", "master_addr", "master_port")),
    Flag("stdout", How.NOT_CARRIED, _LOGS),
    Flag("stderr", How.NOT_CARRIED, _LOGS),
    Flag("verbose", How.NOT_NEEDED, _LOGS, bare=True),
)

TABLES = {
    "torchrun": TORCHRUN,
    "accelerate launch": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "composer": COMPOSER,
    "horovodrun": HOROVODRUN,
}
ENGINES = {"horovodrun": "horovod"}
"""Launchers whose scripts need an engine of their own."""
AS_MODULE = frozenset({MODULE.name, "module_mode"})
"""Flags by which a module takes the place of the script."""
AS_COMMAND = frozenset({NO_PYTHON.name, "command_mode"})
"""Flags by which a command takes the place of the script."""
TOTALS = ("num_processes", "num_proc", "world_size")
"""Flags for the number of ranks of all pods."""
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "composer.cli": "composer",
    "composer.cli.launcher": "composer",
}
ALIASES = {
    "torchrun": {"nproc": "nproc_per_node", "r": "redirects", "t": "tee", "m": "module"},
    "accelerate launch": {"q": "quiet", "t": "tee", "m": "module"},
    "deepspeed": {
        "H": "hostfile",
        "i": "include",
        "e": "exclude",
        "q": "quiet",
        "m": "module",
        "num_accelerators": "num_gpus",
    },
    "composer": {"n": "nproc", "v": "verbose", "m": "module_mode", "c": "command_mode"},
    "horovodrun": {
        "np": "num_proc",
        "min_np": "min_num_proc",
        "max_np": "max_num_proc",
        "H": "hosts",
        "p": "ssh_port",
        "i": "ssh_identity_file",
        "network_interface": "network_interfaces",
        "prefix_timestamp": "prefix_output_with_timestamp",
    },
}


def split(launcher: str, arguments: Sequence[str]) -> tuple[list[tuple[str, str, Flag | None]], list[str]]:
    """Returns the launcher's own flags as (as written, value, flag), and the script with its arguments.

    An unknown flag has no Flag. Its value is the next argument, unless that begins with `-` or is a Python file.
    """
    own: list[tuple[str, str, Flag | None]] = []
    rest = iter(range(len(arguments)))
    for place in rest:
        argument = arguments[place]
        if not argument.startswith("-") or argument == "-":
            return own, list(arguments[place:])
        if argument == "--":
            return own, list(arguments[place + 1 :])
        option, equals, value = argument.partition("=")
        flag = _find(launcher, option)
        if not equals:
            values = arguments[place + 1 : place + 1 + _values(flag, arguments[place + 1 :])]
            value = " ".join(values)
            for _ in values:
                next(rest)
        own.append((option, value, flag))
    return own, []


def _find(launcher: str, option: str) -> Flag | None:
    """Returns the flag of an option as written; None if the launcher's table has none."""
    name = option.lstrip("-").replace("-", "_")
    name = ALIASES[launcher].get(name, name)
    table = TABLES[launcher]
    families = (flag for flag in table if flag.name.endswith("*") and name.startswith(flag.name[:-1]))
    return next((flag for flag in table if flag.name == name), None) or next(families, None)


def _values(flag: Flag | None, following: Sequence[str]) -> int:
    """Returns the number of values that a flag takes from the arguments behind it."""
    if flag:
        return 0 if flag.bare else 2 if flag.pair else 1
    first = following[0] if following else ""
    return int(bool(first) and not first.startswith("-") and not _is_file(first))


def _is_file(argument: str) -> bool:
    return argument.endswith((".py", ".sh")) or "/" in argument


def known() -> Iterator[tuple[str, Flag]]:
    """Yields every launcher with each of its flags."""
    for launcher, table in TABLES.items():
        for flag in dict.fromkeys(table):
            yield launcher, flag
