"""The options of an installation: flags, each of which is also a variable DTJ_OPERATOR_<FLAG>."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from dtj_contract import names
from dtj_core.plan.model import AgentDelivery, Object, Settings
from dtj_operator.errors import OptionError
from dtj_operator.leader.election import Timing
from dtj_operator.sick_node_option import NEVER, read_sick_nodes

ENV_PREFIX = "DTJ_OPERATOR_"
KEY_BYTES = 32
AGENT_RESOURCES = "cpu=100m,memory=64Mi"
# The kubelet mounts the namespace of the operator's own pod here.
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
QUANTITY = r"[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?"
FLAGS = (
    "agent-image", "agent-delivery", "image-pull-policy", "agent-resources", "agent-pull-secrets", "agent-listen-host",
    "pod-user", "master-key-file", "previous-master-key-file", "namespace", "workers", "resync-seconds", "metrics-port",
    "crd-wait-seconds", "kubeconfig", "context", "log-format", "log-level", "leader-election", "lease-namespace",
    "lease-name", "lease-duration-seconds", "renew-deadline-seconds", "retry-period-seconds", "claims-namespace",
    "job-network-policy-from", "metrics-auth", "metrics-cert-dir", "kueue",
    "sick-nodes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """The operator's options. `settings` holds those that the planner needs."""

    settings: Settings
    namespaces: tuple[str, ...]
    """The namespaces to serve; () means all."""
    kubeconfig: str | None
    context: str | None
    workers: int
    resync_seconds: float
    metrics_port: int
    """The port of /metrics, /healthz and /readyz; 0 takes a free port and logs it."""
    metrics_auth: bool
    """Whether only those may read /metrics whom RBAC lets get that path."""
    metrics_cert_dir: str | None
    """Folder with tls.crt and tls.key; None: plain HTTP."""
    crd_wait_seconds: float
    log_format: Literal["json", "text"]
    log_level: str
    master_key_file: str
    previous_master_key_file: str | None
    leader_election: bool
    lease_namespace: str
    lease_name: str
    timing: Timing
    claims_namespace: str | None
    """Where the installations of the cluster keep their claims; None: overlaps are not looked for."""

    def read_keys(self) -> tuple[bytes, bytes | None]:
        """Reads the current and the previous master key from their files. Raises OptionError."""
        return read_master_key(Path(self.master_key_file)), read_previous_key(self.previous_master_key_file)


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Parses the flags and variables. Raises OptionError.

    Exits on --help or an unknown flag, as argparse does.
    """
    given = _parser().parse_args([*_from(environ, arguments), *arguments])
    for flag, least in (("workers", 1), ("resync_seconds", 1), ("metrics_port", 0), ("crd_wait_seconds", 0)):
        if getattr(given, flag) < least:
            raise OptionError(f"--{flag.replace('_', '-')} is {getattr(given, flag)}; it must be {least} or more")
    _check_timing(given)
    if given.metrics_auth == "kubernetes" and given.metrics_cert_dir is None and given.metrics_port != 0:
        raise OptionError(
            "--metrics-auth is kubernetes, and --metrics-cert-dir is missing: tokens would cross the network in plain "
            "HTTP; name a folder with tls.crt and tls.key"
        )
    return Options(
        settings=Settings(
            agent_image=given.agent_image,
            agent_delivery=given.agent_delivery,
            master_key=read_master_key(Path(given.master_key_file)),
            image_pull_policy=given.image_pull_policy,
            agent_resources=resources(given.agent_resources),
            agent_pull_secrets=tuple(filter(None, (given.agent_pull_secrets or "").split(","))),
            listen_host=given.agent_listen_host,
            network_peers=peers(given.job_network_policy_from),
            pod_user=given.pod_user,
            previous_master_key=read_previous_key(given.previous_master_key_file),
            kueue=given.kueue == "true",
            sick_nodes=read_sick_nodes(given.sick_nodes),
        ),
        namespaces=tuple(given.namespace or ()),
        kubeconfig=given.kubeconfig,
        context=given.context,
        workers=given.workers,
        resync_seconds=given.resync_seconds,
        metrics_port=given.metrics_port,
        metrics_auth=given.metrics_auth == "kubernetes",
        metrics_cert_dir=given.metrics_cert_dir,
        crd_wait_seconds=given.crd_wait_seconds,
        log_format=given.log_format,
        log_level=given.log_level,
        master_key_file=given.master_key_file,
        previous_master_key_file=given.previous_master_key_file,
        leader_election=given.leader_election == "true",
        lease_namespace=given.lease_namespace or pod_namespace(),
        lease_name=given.lease_name,
        timing=Timing(
            lease_seconds=given.lease_duration_seconds,
            renew_seconds=given.renew_deadline_seconds,
            retry_seconds=given.retry_period_seconds,
        ),
        claims_namespace=None if given.claims_namespace == "none" else given.claims_namespace,
    )


def _check_timing(given: argparse.Namespace) -> None:
    """Raises OptionError unless the leader always stops before a standby may take over."""
    lease, renew, retry = (given.lease_duration_seconds, given.renew_deadline_seconds, given.retry_period_seconds)
    if not 0 < 2 * retry <= renew <= lease - 1:
        raise OptionError(
            f"--lease-duration-seconds is {lease:g}, --renew-deadline-seconds {renew:g} and --retry-period-seconds "
            f"{retry:g}; the deadline must be a second shorter than the duration, and twice the retry period or more"
        )


def pod_namespace(path: Path = POD_NAMESPACE) -> str:
    """Returns the namespace of the operator's pod, or `default` outside a cluster."""
    try:
        return path.read_text().strip() or "default"
    except OSError:
        return "default"


def _from(environ: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
    """Yields the variables as flags that precede the real ones, because the last of two flags wins.

    DTJ_OPERATOR_NAMESPACE is a comma-separated list.
    """
    for flag in FLAGS:
        value = environ.get(ENV_PREFIX + flag.upper().replace("-", "_"))
        if not value or (flag == "namespace" and any(given.startswith("--namespace") for given in arguments)):
            continue
        for item in value.split(",") if flag == "namespace" else [value]:
            yield from ("--" + flag, item)


def resources(text: str) -> dict[str, str]:
    """Parses `cpu=100m,memory=64Mi` into a map; `none` is {}. Raises OptionError."""
    if text == "none":
        return {}
    pairs = [pair.partition("=") for pair in text.split(",")]
    for name, _, quantity in pairs:
        if not name or not re.fullmatch(QUANTITY, quantity):
            raise OptionError(
                f"--agent-resources: {text} is no list such as {AGENT_RESOURCES}; write such a list, or none"
            )
    return {name: quantity for name, _, quantity in pairs}


def peers(text: str | None) -> tuple[Object, ...] | None:
    """Parses a JSON list of NetworkPolicyPeers; None stays None. Raises OptionError."""
    if text is None:
        return None
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    known = {"podSelector", "namespaceSelector", "ipBlock"}
    if not isinstance(given, list) or not all(
        isinstance(peer, dict) and peer and peer.keys() <= known for peer in given
    ):
        raise OptionError(
            f"--job-network-policy-from: {text} is no JSON list of NetworkPolicyPeers; write a list such as "
            '[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dtj-system"}}}]'
        )
    return tuple(given)


def read_master_key(path: Path) -> bytes:
    """Reads the secret that all jobs' agent keys are derived from. Raises OptionError."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise OptionError(
            f"--master-key-file: {path} can't be read ({error.strerror}); mount the operator's Secret there, "
            f"or create a key to try the operator out: head -c {KEY_BYTES} /dev/urandom | base64 > {path}"
        ) from error
    if len(key) < KEY_BYTES:
        raise OptionError(
            f"--master-key-file: {path} holds {len(key)} bytes; it must hold {KEY_BYTES} random bytes or more"
        )
    return key


def read_previous_key(file: str | None) -> bytes | None:
    """Returns the previous master key, or None if there is no such file. Raises OptionError."""
    return read_master_key(Path(file)) if file is not None and Path(file).exists() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dtj-operator",
        description="Kubernetes operator for DistributedTrainingJob.",
        epilog=f"Every flag can be set by a variable, too: --agent-image is {ENV_PREFIX}AGENT_IMAGE.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--agent-image", required=True, help="image with /dtj/agent.pyz for every pod: the operator's own image")
    add(
        "--agent-delivery",
        choices=get_args(AgentDelivery),
        default="init-container",
        help="how the agent gets into a pod: copied by an init container, or in a volume that is the image, which "
        "starts a pod faster (Kubernetes 1.35 with containerd 2.1 or CRI-O 1.33)",
    )
    add(
        "--image-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        help="pull policy of the agent's image in the pods",
    )
    add(
        "--agent-resources",
        default=AGENT_RESOURCES,
        help="requests and limits of the agent's init container; none: no requests or limits",
    )
    add(
        "--agent-pull-secrets",
        help="Secrets of each job's namespace, separated by commas, with which its pods pull the agent's image; a pod "
        "with any does not get those of its service account (default: none)",
    )
    add(
        "--agent-listen-host",
        default="0.0.0.0",
        help="address that agents bind to; [::] where pods have IPv6 addresses only",
    )
    add(
        "--job-network-policy-from",
        help="JSON list of NetworkPolicyPeers that may reach the agents' port, the operator among them; each job gets "
        "a NetworkPolicy that admits these and its own pods (default: no NetworkPolicies)",
    )
    add(
        "--master-key-file",
        required=True,
        help="file with 32 or more random bytes; the agent keys of all jobs are derived from it",
    )
    add(
        "--previous-master-key-file",
        help="file with the previous master key, for the agents of jobs that were started with it",
    )
    add(
        "--pod-user",
        choices=("fixed", "cluster"),
        default="fixed",
        help="user and group of job pods that set none: fixed is 65532, "
        "cluster leaves both to the namespace's admission (OpenShift)",
    )
    add("--namespace", action="append", help="serve only this namespace; repeatable (default: all namespaces)")
    add("--workers", type=int, default=8, help="number of jobs that are reconciled at the same time")
    add("--resync-seconds", type=float, default=450.0, help="reconcile every job this often, give or take a third")
    add(
        "--metrics-port",
        type=int,
        default=8080,
        help="port of /metrics, /healthz and /readyz; 0: a free port on loopback",
    )
    add(
        "--metrics-auth",
        choices=("none", "kubernetes"),
        default="none",
        help="who may read /metrics; kubernetes: those who show a token of the cluster whose user may get /metrics",
    )
    add("--metrics-cert-dir", help="folder with tls.crt and tls.key: the metrics port then speaks HTTPS")
    add(
        "--crd-wait-seconds",
        type=float,
        default=120.0,
        help="seconds to wait for the CRD to be installed before exit 1",
    )
    add("--kubeconfig", help="log in with this file instead of the pod's service account")
    add("--context", help="context of the kubeconfig (default: its current context)")
    add("--log-format", choices=("json", "text"), default="json", help="json: one object a line; text: for a terminal")
    add(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="lowest level that is logged"
    )
    add(
        "--leader-election",
        choices=("true", "false"),
        default="true",
        help="of several replicas only the one that holds a Lease acts; false: this process acts at once",
    )
    add(
        "--kueue",
        choices=("true", "false"),
        default="false",
        help="true: queue jobs with spec.queueName by Workloads of Kueue; false: only set Kueue's label on their "
        "StatefulSets",
    )
    add(
        "--sick-nodes",
        default=NEVER,
        help="JSON object: signs of nodes that jobs leave, and bounds ({}: the defaults); none: jobs leave no node",
    )
    add("--lease-namespace", help="namespace of the Lease (default: that of the operator's pod, else default)")
    add("--lease-name", default=names.MANAGER, help="name of the Lease; the replicas of one installation share it")
    add(
        "--lease-duration-seconds",
        type=float,
        default=Timing.lease_seconds,
        help="a standby takes over when the leader has not renewed the Lease for this long",
    )
    add(
        "--renew-deadline-seconds",
        type=float,
        default=Timing.renew_seconds,
        help="the leader stops acting when it could not renew the Lease for this long",
    )
    add(
        "--retry-period-seconds",
        type=float,
        default=Timing.retry_seconds,
        help="the leader renews the Lease this often",
    )
    add(
        "--claims-namespace",
        default="kube-system",
        help="namespace where all installations of the cluster keep a Lease with the namespaces that they serve, "
        "to notice when they overlap; none: do not look",
    )
    return parser
