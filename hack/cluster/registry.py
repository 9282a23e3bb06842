"""The local registry: push to localhost:5001, and the nodes pull the same name from it.

A changed layer passes through it in a fraction of a second; `kind load` copies the whole image each time.
"""

from __future__ import annotations

import os
import tempfile
import urllib.request
from pathlib import Path

from hack.cluster import cache, docker, gobuild, kind
from hack.cluster.shell import ProvisionError, log, run, wait_for
from hack.cluster.versions import TOOLS

PUBLIC_IMAGE = "registry:3"

_CONFIG = """version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: /var/lib/registry}
  delete: {enabled: true}
http: {addr: ":5000"}
"""
_DOCKERFILE = """FROM scratch
COPY registry config.yml /
ENTRYPOINT ["/registry", "serve", "/config.yml"]
"""


def name() -> str:
    """Returns the name of the container and of the volume with its images; each cluster has its own."""
    return f"{kind.name()}-registry"


def port() -> int:
    return int(os.environ.get("DTJ_REGISTRY_PORT") or 5001)


def address() -> str:
    """Returns the address that both this machine and the nodes use."""
    return f"localhost:{port()}"


def up() -> None:
    """Starts the registry on kind's network if it doesn't run. Its images lie in a volume and outlive it."""
    if not docker.running(name()) or not _answers_soon():
        image = PUBLIC_IMAGE if docker.public_images() else _image()
        if docker.exists(name()):
            run(["docker", "rm", "--force", name()], timeout=60)
        log(f"starting the registry at {address()}")
        published = f"127.0.0.1:{port()}:5000"
        # Without this setting the registry's tracing looks for a collector.
        settings = ["-e", "OTEL_TRACES_EXPORTER=none", "-e", "REGISTRY_STORAGE_DELETE_ENABLED=true"]
        place = ["-p", published, "-v", f"{name()}:/var/lib/registry", "--network", "kind"]
        run(
            ["docker", "run", "-d", "--name", name(), "--restart=unless-stopped", *place, *settings, image], timeout=120
        )
    wait_for(f"the registry at {address()}", answers, timeout=30)


def _answers_soon() -> bool:
    try:
        wait_for("the registry", answers, timeout=10)
        return True
    except ProvisionError:
        # The container may run and be unreachable, for example after its published port died with an engine.
        return False


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port()}/v2/", timeout=3) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def connect_nodes() -> None:
    """Configures each node's containerd to pull from localhost:PORT first, also for names without a registry.

    The nodes thus resolve `image: dtj-trainer:cpu` of the examples to the image that `make images` pushed.
    """
    ours = f'[host."http://{name()}:5000"]\n'
    mirror = f'server = "https://registry-1.docker.io"\n{ours}  capabilities = ["pull", "resolve"]\n'
    for node in kind.nodes():
        for registry, hosts in ((address(), ours), ("docker.io", mirror)):
            place = f"/etc/containerd/certs.d/{registry}"
            docker.execute(node, ["sh", "-ec", f"mkdir -p {place} && cat > {place}/hosts.toml"], stdin=hosts)
    # Where tools look for it (KEP-1755).
    document = f"""apiVersion: v1
kind: ConfigMap
metadata: {{name: local-registry-hosting, namespace: kube-public}}
data: {{localRegistryHosting.v1: 'host: "{address()}"'}}
"""
    kind.kubectl("apply", "-f", "-", stdin=document)


def down(*, purge: bool) -> None:
    if docker.exists(name()):
        run(["docker", "rm", "--force", name()], timeout=60)
    if purge:
        run(["docker", "volume", "rm", "--force", name()], timeout=60)


def _image() -> str:
    tool = TOOLS["registry"]
    image = f"dtj-registry:{tool.version}-{cache.key(tool.version, _CONFIG, _DOCKERFILE)}"
    if not docker.image_exists(image):
        with tempfile.TemporaryDirectory() as place:
            context = Path(place)
            docker.copy_program(gobuild.binary("registry"), context)
            (context / "config.yml").write_text(_CONFIG)
            docker.build(image, context, _DOCKERFILE)
    return image
