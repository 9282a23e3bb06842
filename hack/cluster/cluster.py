"""The commands `up`, `down`, `env` and `heal-network`, composed of the other modules."""

from __future__ import annotations

import shlex
import shutil
import time

from hack.cluster import cache, docker, engine, kind, network, registry
from hack.cluster.shell import ProvisionError, log, run, wait_for
from hack.cluster.versions import CLIENTS

# A restarted node container needs kubelet, containerd and its pods; a minute is generous.
REPAIR_TIMEOUT = 90


def up() -> None:
    """Leaves a healthy cluster alone, repairs a damaged one in place if possible, otherwise recreates it."""
    began = time.monotonic()
    started = engine.ensure()
    with cache.lock(f"cluster-{kind.name()}"):
        if not _healthy():
            # A killed engine that restarts brings back half a cluster, which takes minutes to fail. Recreate it then.
            if started or not _repaired():
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
    """Returns shell lines for `eval`: every setting that this project's commands and tests need."""
    if not kind.kubeconfig().exists():
        raise ProvisionError(f"there is no cluster {kind.name()}; `make cluster-up` creates it")
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
    """Restores the routes after a node container was stopped and started."""
    engine.ensure()
    if not docker.public_images():
        network.apply()


def _healthy() -> bool:
    if not docker.running(*kind.nodes(), registry.name()) or not kind.is_current():
        return False
    return _ready() and registry.answers()


def _ready() -> bool:
    """Returns whether every node reports that it is Ready."""
    try:
        template = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{" "}{end}'
        answers = kind.kubectl("get", "nodes", "-o", f"jsonpath={template}", timeout=10).split()
    except ProvisionError:
        return False
    return answers == ["True"] * len(kind.nodes())


def _repaired() -> bool:
    """Starts the stopped workers and restores their routes. Returns whether the cluster is healthy again."""
    control_plane = kind.nodes()[0]
    if (
        not all(docker.exists(node) for node in kind.nodes())
        or not docker.running(control_plane)
        or not kind.is_current()
    ):
        return False
    log(f"cluster {kind.name()} is not healthy; repairing it")
    try:
        for node in kind.nodes():
            if not docker.running(node):
                run(["docker", "start", node], timeout=60)
        registry.up()
        if not docker.public_images():
            network.apply()
        wait_for("all nodes to be Ready", _ready, timeout=REPAIR_TIMEOUT, every=1)
        return True
    except ProvisionError as error:
        log(f"can't be repaired: {error}")
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
    except ProvisionError:
        return False
