"""What the installation decides: flags, each of them also a variable DTJ_OPERATOR_<FLAG>."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dtj_core.plan.model import Settings
from dtj_operator.errors import OptionError

ENV_PREFIX = "DTJ_OPERATOR_"
KEY_BYTES = 32
AGENT_RESOURCES = "cpu=100m,memory=64Mi"
QUANTITY = r"[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?"
FLAGS = (
    "agent-image", "image-pull-policy", "agent-resources", "agent-listen-host", "pod-user", "master-key-file",
    "previous-master-key-file", "namespace", "workers", "resync-seconds", "metrics-port", "crd-wait-seconds",
    "kubeconfig", "context", "log-format", "log-level",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """The operator's own options; `settings` is what the planner gets of them."""

    settings: Settings
    namespaces: tuple[str, ...]
    """Served; () means all."""
    kubeconfig: str | None
    context: str | None
    workers: int
    resync_seconds: float
    metrics_port: int
    """Of /metrics, /healthz and /readyz; 0 takes a free one and logs it."""
    crd_wait_seconds: float
    log_format: Literal["json", "text"]
    log_level: str
    master_key_file: str
    previous_master_key_file: str | None

    def read_keys(self) -> tuple[bytes, bytes | None]:
        """The present and the previous master key as they are in their files now. Raises OptionError."""
        return read_master_key(Path(self.master_key_file)), read_previous_key(self.previous_master_key_file)


def parse(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Raises OptionError; ends the process on --help or an unknown flag, as argparse does."""
    given = _parser().parse_args([*_from(environ, arguments), *arguments])
    for flag, least in (("workers", 1), ("resync_seconds", 1), ("metrics_port", 0), ("crd_wait_seconds", 0)):
        if getattr(given, flag) < least:
            raise OptionError(f"--{flag.replace('_', '-')} is {getattr(given, flag)}; it must be {least} or more")
    return Options(
        settings=Settings(
            agent_image=given.agent_image,
            master_key=read_master_key(Path(given.master_key_file)),
            image_pull_policy=given.image_pull_policy,
            agent_resources=resources(given.agent_resources),
            listen_host=given.agent_listen_host,
            pod_user=given.pod_user,
            previous_master_key=read_previous_key(given.previous_master_key_file),
        ),
        namespaces=tuple(given.namespace or ()),
        kubeconfig=given.kubeconfig,
        context=given.context,
        workers=given.workers,
        resync_seconds=given.resync_seconds,
        metrics_port=given.metrics_port,
        crd_wait_seconds=given.crd_wait_seconds,
        log_format=given.log_format,
        log_level=given.log_level,
        master_key_file=given.master_key_file,
        previous_master_key_file=given.previous_master_key_file,
    )


def _from(environ: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
    """The variables as flags, to stand before the real ones: of two the later holds. DTJ_OPERATOR_NAMESPACE is a comma list."""
    for flag in FLAGS:
        value = environ.get(ENV_PREFIX + flag.upper().replace("-", "_"))
        if not value or (flag == "namespace" and any(given.startswith("--namespace") for given in arguments)):
            continue
        for each in value.split(",") if flag == "namespace" else [value]:
            yield from ("--" + flag, each)


def resources(text: str) -> dict[str, str]:
    """`cpu=100m,memory=64Mi` as a map; `none` is {}. Raises OptionError."""
    if text == "none":
        return {}
    pairs = [pair.partition("=") for pair in text.split(",")]
    for name, _, quantity in pairs:
        if not name or not re.fullmatch(QUANTITY, quantity):
            raise OptionError(f"--agent-resources: {text} is no list such as {AGENT_RESOURCES}; write one, or none")
    return {name: quantity for name, _, quantity in pairs}


def read_master_key(path: Path) -> bytes:
    """The secret that all jobs' agent keys are made from. Raises OptionError."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise OptionError(
            f"--master-key-file: {path} can't be read ({error.strerror}); mount the operator's Secret there, "
            f"or make one for a try: head -c {KEY_BYTES} /dev/urandom | base64 > {path}"
        ) from error
    if len(key) < KEY_BYTES:
        raise OptionError(f"--master-key-file: {path} holds {len(key)} bytes; it must hold {KEY_BYTES} random ones or more")
    return key


def read_previous_key(file: str | None) -> bytes | None:
    """The key before the present one; None if there is no such file. Raises OptionError."""
    return read_master_key(Path(file)) if file is not None and Path(file).exists() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dtj-operator",
        description="Kubernetes operator for DistributedTrainingJob.",
        epilog=f"Every flag is also a variable: --agent-image is {ENV_PREFIX}AGENT_IMAGE.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--agent-image", required=True, help="image with /dtj/agent.pyz, put into every pod: the operator's own image")
    add("--image-pull-policy", choices=("Always", "IfNotPresent", "Never"), help="of the agent's image in the pods")
    add("--agent-resources", default=AGENT_RESOURCES, help="requests and limits of the agent's init container; none: without")
    add("--agent-listen-host", default="0.0.0.0", help="what agents bind to; [::] where pods have IPv6 addresses only")
    add("--master-key-file", required=True, help="file with 32 or more random bytes; the jobs' agent keys are made from it")
    add("--previous-master-key-file", help="the key before: agents of jobs that were started with it are asked with it")
    add(
        "--pod-user",
        choices=("fixed", "cluster"),
        default="fixed",
        help="user and group of job pods that name none: fixed is 65532, "
        "cluster leaves them to the namespace's admission (OpenShift)",
    )
    add("--namespace", action="append", help="serve this namespace alone; may be repeated (default: all namespaces)")
    add("--workers", type=int, default=8, help="jobs that are reconciled at the same time")
    add("--resync-seconds", type=float, default=450.0, help="every job is looked at again this often, give or take a third")
    add("--metrics-port", type=int, default=8080, help="of /metrics, /healthz, /readyz; 0: a free one, on loopback")
    add("--crd-wait-seconds", type=float, default=120.0, help="wait this long for the CRD to be installed, then exit 1")
    add("--kubeconfig", help="log in with this file instead of the pod's service account")
    add("--context", help="context of the kubeconfig (default: its current one)")
    add("--log-format", choices=("json", "text"), default="json", help="json: one object a line; text: for a terminal")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="least level that is logged")
    return parser
