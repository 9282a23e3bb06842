"""Parses the DTJ_* environment. Every error names the variable and what to set."""

from __future__ import annotations

import json
import os
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

from dtj_agent import engines
from dtj_agent.errors import SettingsError
from dtj_agent.group import hang_watch, restart_rules
from dtj_agent.group.group_spec import ElasticLimits
from dtj_agent.group.restart_rules import RestartRule
from dtj_contract import names

Address = Tuple[str, int]


class AgentSettings(NamedTuple):
    """The settings that the operator (or `dtj run`) gives an agent. Times in seconds."""

    job: str
    uid: str
    namespace: str
    replicas: int
    processes: int
    """Worker processes per pod."""
    ordinal: int
    pod: str
    address: str
    """Address at which the other pods reach this pod; MASTER_ADDR when this pod has node rank 0."""
    node: str
    peers: str
    listen: Address
    attempt_floor: int
    max_restarts: int
    window: float
    backend: str
    secret: bytes
    state_dir: str
    termination_log: str
    grace: float
    """SIGTERM to SIGKILL of the workers when the pod terminates."""
    stop_grace: float
    """SIGTERM to SIGKILL of the workers when the group has failed."""
    stop_grace_given: bool
    """Whether the job sets that grace, rather than having the default."""
    rendezvous_timeout: float
    """0: wait for the group as long as the job exists."""
    hang_policy: str
    """Restart, Report or Off."""
    hang_min_seconds: float
    """0: the defaults of hang_watch."""
    progress_deadline: float
    """0: none."""
    checkpoint_dir: Optional[str]
    parent: int
    """The pid of the process that must live as long as this agent, in a local run; 0: none."""
    command: Tuple[str, ...]
    warm: bool
    """Whether workers are forked from a warm process where that is possible."""
    preload: Tuple[str, ...]
    """Modules that the warm process imports beside torch."""
    max_without_progress: int = names.MAX_WITHOUT_PROGRESS
    rules: Tuple[RestartRule, ...] = ()
    rule_problems: Tuple[str, ...] = ()
    """Why some of the job's rules were left out."""
    generation: int = 0
    """Generation of the job when this pod's template was rendered; 0: unknown."""
    spares: int = 0
    elastic: Optional[ElasticLimits] = None
    """None: every attempt has `replicas` pods."""
    launched: int = 0
    """Ranks that a launcher in the command shall start in this pod; 0: the command is no launcher."""
    kubeflow: bool = True
    """Whether this agent takes the progress that Kubeflow's clients send."""
    success_policy: str = names.SUCCESS_ALL
    """AllRanks or Rank0."""
    engine: str = names.DEFAULT_ENGINE
    """Name of a module of dtj_agent.engines."""

    def peer(self, ordinal: int) -> Address:
        """Returns name and port of another agent: from the template, or from the list by ordinal."""
        text = self.peers.format(ordinal) if "{}" in self.peers else self.peers.split(",")[ordinal]
        return parse_address(names.ENV_PEERS, text)

    @property
    def peer_count(self) -> int:
        """Number of agents that can be called by name: replicas and spares, or all of an explicit list."""
        return self.replicas + self.spares if "{}" in self.peers else len(self.peers.split(","))

    def callable_peers(self, pods: int) -> int:
        """Returns the number of agents that can be called by name while the job has `pods` pods."""
        return pods if "{}" in self.peers else self.peer_count

    @property
    def most_peers(self) -> int:
        """Number of agents that the job may ever have."""
        most = 0 if self.elastic is None else self.elastic.most or names.MAX_PODS
        return max(self.peer_count, most + self.spares)


def parse(environ: Mapping[str, str], command: Sequence[str]) -> AgentSettings:
    """Returns the settings. Raises SettingsError for the first variable that is missing or wrong."""
    if not command:
        raise SettingsError("no worker command: call the agent as `agent.pyz -- COMMAND...`")
    replicas = _integer(environ, names.ENV_REPLICAS, least=1)
    ordinal = _integer(environ, names.ENV_ORDINAL, least=0)
    listen = parse_address(names.ENV_LISTEN, environ.get(names.ENV_LISTEN, "0.0.0.0:%d" % names.AGENT_PORT))
    job = _text(environ, names.ENV_JOB)
    rules, problems = _rules(environ)
    settings = AgentSettings(
        job=job,
        uid=_text(environ, names.ENV_JOB_UID),
        namespace=environ.get(names.ENV_NAMESPACE, "default"),
        replicas=replicas,
        processes=_integer(environ, names.ENV_PROCESSES_PER_POD, least=1, default=1),
        ordinal=ordinal,
        pod=environ.get(names.ENV_POD_NAME) or "%s-%d" % (job, ordinal),
        address=_own_address(environ, listen),
        node=environ.get(names.ENV_NODE_NAME, ""),
        peers=_peers(environ, replicas, ordinal),
        listen=listen,
        attempt_floor=_integer(environ, names.ENV_ATTEMPT_FLOOR, least=1, default=1),
        max_restarts=_integer(environ, names.ENV_MAX_RESTARTS, least=0, default=10),
        window=_seconds(environ, names.ENV_RESTART_WINDOW, default=3600.0),
        backend=environ.get(names.ENV_BACKEND, "auto"),
        secret=_secret(environ),
        state_dir=environ.get(names.ENV_STATE_DIR, names.STATE_DIR),
        termination_log=environ.get(names.ENV_TERMINATION_LOG, names.TERMINATION_LOG),
        grace=_seconds(environ, names.ENV_GRACE_SECONDS, default=25.0),
        stop_grace=_seconds(environ, names.ENV_STOP_GRACE_SECONDS, default=names.STOP_GRACE_SECONDS),
        stop_grace_given=bool(environ.get(names.ENV_STOP_GRACE_SECONDS)),
        rendezvous_timeout=_seconds(environ, names.ENV_RENDEZVOUS_TIMEOUT, default=0.0),
        hang_policy=_choice(environ, names.ENV_HANG_POLICY, (hang_watch.RESTART, hang_watch.REPORT, hang_watch.OFF)),
        hang_min_seconds=_seconds(environ, names.ENV_HANG_MIN_SECONDS, default=0.0),
        progress_deadline=_seconds(environ, names.ENV_PROGRESS_DEADLINE, default=0.0),
        checkpoint_dir=environ.get(names.ENV_CHECKPOINT_DIR) or None,
        parent=_integer(environ, names.ENV_DIE_WITH_PARENT, least=0, default=0),
        command=tuple(command),
        warm=environ.get(names.ENV_WARM_WORKERS) != names.WARM_NEVER,
        preload=tuple(name for name in environ.get(names.ENV_PRELOAD, "").split(",") if name),
        max_without_progress=_integer(
            environ, names.ENV_MAX_WITHOUT_PROGRESS, least=1, default=names.MAX_WITHOUT_PROGRESS
        ),
        rules=rules,
        rule_problems=tuple(problems),
        generation=_integer(environ, names.ENV_GENERATION, least=0, default=0),
        spares=_integer(environ, names.ENV_SPARES, least=0, default=0),
        elastic=_elastic(environ),
        kubeflow=environ.get(names.ENV_KUBEFLOW_PROGRESS) != names.KUBEFLOW_NEVER,
        success_policy=_choice(environ, names.ENV_SUCCESS_POLICY, (names.SUCCESS_ALL, names.SUCCESS_RANK_0)),
        engine=environ.get(names.ENV_ENGINE) or names.DEFAULT_ENGINE,
    )
    engine = engines.load(settings.engine)
    if engine.one_rank:
        settings = settings._replace(processes=1)
    if engine.rank_zero_decides:
        settings = settings._replace(success_policy=names.SUCCESS_RANK_0)
    for other in range(settings.peer_count):
        # A wrong entry must be an error now, not when that peer is first called.
        settings.peer(other)
    return settings


def _elastic(environ: Mapping[str, str]) -> Optional[ElasticLimits]:
    if not environ.get(names.ENV_MIN_REPLICAS):
        return None
    return ElasticLimits(
        _integer(environ, names.ENV_MIN_REPLICAS, least=1),
        _integer(environ, names.ENV_MAX_REPLICAS, least=1, default=0),
        _seconds(environ, names.ENV_ELASTIC_WAIT, default=10.0),
    )


def parse_address(variable: str, text: str) -> Address:
    """Parses `host:port` or `[v6]:port`. Raises SettingsError that names `variable`."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise SettingsError("%s: %r is not host:port; write e.g. 10.0.0.5:29400 or [::]:29400" % (variable, text))
    return host.strip("[]"), int(port)


def _rules(environ: Mapping[str, str]) -> Tuple[Tuple[RestartRule, ...], List[str]]:
    try:
        return restart_rules.read(json.loads(environ.get(names.ENV_RESTART_RULES) or "[]"))
    except (ValueError, RecursionError) as error:
        raise SettingsError("%s: not JSON (%s)" % (names.ENV_RESTART_RULES, error)) from error


def _text(environ: Mapping[str, str], variable: str) -> str:
    value = environ.get(variable, "").strip()
    if not value:
        raise SettingsError("%s is not set: the operator's pod template or `dtj run` sets it" % variable)
    return value


def _integer(environ: Mapping[str, str], variable: str, least: int, default: Optional[int] = None) -> int:
    if default is not None and not environ.get(variable):
        return default
    text = _text(environ, variable)
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise SettingsError("%s: %r must be a whole number of at least %d" % (variable, text, least))
    return value


def _choice(environ: Mapping[str, str], variable: str, choices: Sequence[str]) -> str:
    """Returns the value of `variable`, by default the first of `choices`."""
    text = environ.get(variable) or choices[0]
    if text not in choices:
        raise SettingsError("%s: %r must be one of %s" % (variable, text, ", ".join(choices)))
    return text


def _seconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    text = environ.get(variable) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:  # NaN fails this too
        raise SettingsError("%s: %r must be a number of seconds, 0 or more" % (variable, text))
    return value


def _own_address(environ: Mapping[str, str], listen: Address) -> str:
    address = environ.get(names.ENV_POD_IP) or listen[0]
    if address in ("0.0.0.0", "::", ""):
        what = "%s is not set: set it to the address at which the other pods reach this pod"
        raise SettingsError(what % names.ENV_POD_IP)
    return address


def _peers(environ: Mapping[str, str], replicas: int, ordinal: int) -> str:
    peers = _text(environ, names.ENV_PEERS)
    if "{}" not in peers and len(peers.split(",")) <= max(replicas - 1, ordinal):
        raise SettingsError(
            "%s: %r lists %d agents, but there are %d replicas and this is ordinal %d; list host:port of every agent"
            " by ordinal, or write a template with {} in place of the ordinal"
            % (names.ENV_PEERS, peers, len(peers.split(",")), replicas, ordinal)
        )
    return peers


def _secret(environ: Mapping[str, str]) -> bytes:
    path = environ.get(names.ENV_SECRET_FILE) or os.path.join(names.SECRET_DIR, names.SECRET_KEY)
    try:
        with open(path, "rb") as file:
            secret = file.read(4096).strip()
    except OSError as error:
        raise SettingsError("%s: can't read %s (%s)" % (names.ENV_SECRET_FILE, path, error.strerror)) from error
    if len(secret) < 32:
        raise SettingsError(
            "%s: %s must hold at least 32 characters, e.g. of `openssl rand -hex 32`" % (names.ENV_SECRET_FILE, path)
        )
    return secret
