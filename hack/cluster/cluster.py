"""`up`, `down`, `env`: the parts put together."""

from __future__ import annotations

import shlex
import shutil
import time

from hack.cluster import cache, docker, engine, kind, network, registry
from hack.cluster.shell import ClusterError, log, run, wait_for
from hack.cluster.versions import CLIENTS

# A node container that was started again needs kubelet, containerd and its pods; a minute is generous.
MEND_TIMEOUT = 90


def up() -> None:
    """Leave a healthy cluster alone, mend what can be mended in place, else make it anew."""
    began = time.monotonic()
    started = engine.ensure()
    with cache.lock(f"cluster-{kind.name()}"):
        if not _healthy():
            # What an engine that was killed brings back by itself is half a cluster, and takes minutes to show it.
            if started or not _mended():
                kind.delete()
                _create()
            log(f"cluster {kind.name()} is up after {time.monotonic() - began:.0f} s")
            log('for this shell: eval "$(make -s cluster-env)"')
            return
    log(f"cluster {kind.name()} is healthy")


def down(*, keep_engine: bool, purge: bool) -> None:
    if engine.answers():
        with cache.lock(f"cluster-{kind.name()}"):
            kind.delete()
            registry.down(purge=purge)
            if purge:
                shutil.rmtree(kind.state(), ignore_errors=True)
    if not keep_engine:
        engine.stop()


def environment() -> str:
    """Shell lines for `eval`: everything that this project's commands and tests want to know."""
    if not kind.kubeconfig().exists():
        raise ClusterError(f"there is no cluster {kind.name()}; `make cluster-up` makes one")
    folders = dict.fromkeys(str(kind.program(name).parent) for name in CLIENTS)
    lines = {
        "KUBECONFIG": str(kind.kubeconfig()),
        "DTJ_REGISTRY": registry.address(),
        "DTJ_AUDIT_LOG": str(kind.state() / "audit/audit.log"),
        "DTJ_SHARED_DIR": str(kind.state() / "shared"),
    }
    exports = [f"export {name}={shlex.quote(value)}" for name, value in lines.items()]
    return "\n".join([*exports, f"export PATH={shlex.quote(':'.join(folders))}:$PATH"])


def heal_network() -> None:
    """For whoever has stopped and started a node container."""
    engine.ensure()
    if not docker.public_images():
        network.apply()


def _healthy() -> bool:
    if not docker.running(*kind.nodes(), registry.name()) or not kind.is_current():
        return False
    return _ready() and registry.answers()


def _ready() -> bool:
    """Whether every node says so."""
    try:
        template = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{" "}{end}'
        answers = kind.kubectl("get", "nodes", "-o", f"jsonpath={template}", timeout=10).split()
    except ClusterError:
        return False
    return answers == ["True"] * len(kind.nodes())


def _mended() -> bool:
    """Start the workers that were stopped, restore their routes, and see whether that was all."""
    control_plane = kind.nodes()[0]
    if not all(docker.exists(node) for node in kind.nodes()) or not docker.running(control_plane) or not kind.is_current():
        return False
    log(f"cluster {kind.name()} is not healthy; mending it")
    try:
        for node in kind.nodes():
            if not docker.running(node):
                run(["docker", "start", node], timeout=60)
        registry.up()
        if not docker.public_images():
            network.apply()
        wait_for("all nodes to be Ready", _ready, timeout=MEND_TIMEOUT, every=1)
        return True
    except ClusterError as error:
        log(f"not to be mended: {error}")
        return False


def _create() -> None:
    kind.create()
    registry.up()
    registry.connect_nodes()
    if not docker.public_images():
        wait_for("the nodes' address ranges", _have_ranges, timeout=60)
        network.apply()
    wait_for("all nodes to be Ready", _ready, timeout=120, every=0.5)
    for namespace, deployment in (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner")):
        kind.kubectl("-n", namespace, "rollout", "status", f"deployment/{deployment}", "--timeout=120s", timeout=120)


def _have_ranges() -> bool:
    try:
        return len(network.ranges()) == len(kind.nodes())
    except ClusterError:
        return False
