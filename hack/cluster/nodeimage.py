"""kind's node image built from source, for machines that can't pull `kindest/node`.

kind's own recipe (images/base/Dockerfile of its module), with Debian bookworm's systemd and runc, our containerd, and
no fuse-overlayfs; then `kind build node-image` from our own Kubernetes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hack.cluster import baseimage, cache, docker, gobuild, nodeparts
from hack.cluster.shell import ProvisionError, log, run
from hack.cluster.versions import CNI_PLUGINS, KIND, KUBERNETES, TOOLS

RECIPE = 1
_LOCAL = ("containerd", "containerd-shim-runc-v2", "ctr", "crictl")

_DOCKERFILE = """FROM {base}
COPY files/ /
RUN apt-get update && apt-get install -y --no-install-recommends \\
      systemd dbus conntrack iptables nftables iproute2 ethtool util-linux mount kmod jq procps curl ca-certificates \\
      runc \\
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/* /usr/share/doc/* /usr/share/man/* \\
 && find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete \\
 && rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \\
          /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/sockets.target.wants/*udev* \\
          /lib/systemd/system/sockets.target.wants/*initctl* /lib/systemd/system/basic.target.wants/* \\
 && echo ReadKMsg=no >> /etc/systemd/journald.conf \\
 && ln -sf /usr/lib/systemd/systemd /sbin/init \\
 && systemctl enable kubelet.service containerd.service undo-mount-hacks.service \\
 && systemctl mask systemd-binfmt.service \\
 && mkdir -p /etc/kubernetes/manifests \\
 && ctr oci spec \\
      | jq '.hooks.createContainer[.hooks.createContainer | length] |= . + {{"path": "/kind/bin/mount-product-files.sh"}}' \\
      | jq 'del(.process.rlimits)' > /etc/containerd/cri-base.json \\
 && containerd --version && runc --version
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
"""  # noqa: E501 - the cache key holds this text


def node_image() -> str:
    """Returns the image for `kind create cluster --image`; builds it if the engine lacks it."""
    name = f"dtj-node:v{KUBERNETES}-{_key()}"
    if docker.image_exists(name):
        return name
    with cache.lock("node-image"):
        if docker.image_exists(name):
            return name
        base = _node_base()
        with tempfile.TemporaryDirectory(dir=_scratch()) as place:
            tarball = Path(place) / "server.tar.gz"
            nodeparts.server_tarball(tarball)
            log("kind build node-image")
            command = ["build", "node-image", "--type", "file", "--base-image", base, "--image", name, str(tarball)]
            # kind unpacks the tarball into the temporary folder: 1 GB, for which a small /tmp may lack room.
            run([gobuild.binary("kind"), *command], timeout=900, env={"TMPDIR": place})
    return name


def _key() -> str:
    programs = [(tool.name, tool.version) for tool in TOOLS.values()]
    return cache.key(RECIPE, KIND, programs, _DOCKERFILE, baseimage.build_base_key())


def _scratch() -> Path:
    folder = cache.root() / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _node_base() -> str:
    name = f"dtj-node-base:{_key()}"
    if docker.image_exists(name):
        return name
    with tempfile.TemporaryDirectory(dir=_scratch()) as place:
        files = Path(place) / "files"
        _lay_out(files)
        docker.build(name, Path(place), _DOCKERFILE.format(base=baseimage.build_base()))
    return name


def _lay_out(files: Path) -> None:
    """Copies kind's files and our programs to their places in the node, with the modes of kind's Dockerfile."""
    theirs = nodeparts.kind_source() / "images/base/files"
    scripts = ("usr/local/bin", "kind/bin")
    # Set modes, because the module cache is read-only and a node's files must be writable.
    for source in sorted(path for path in theirs.rglob("*") if path.is_file()):
        relative = source.relative_to(theirs)
        copy = files / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755 if str(relative.parent) in scripts else 0o644)
    config = files / "etc/containerd/config.toml"
    text = config.read_text()
    relaxed = text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    if relaxed == text:
        raise ProvisionError("kind's containerd config has changed and lacks `restrict_oom_score_adj = false`")
    # Without CAP_SYS_RESOURCE no process may lower its OOM score, and each pod would die at its start.
    config.write_text(relaxed)
    for folder, names in (("usr/local/bin", _LOCAL), ("opt/cni/bin", CNI_PLUGINS)):
        (files / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(gobuild.binary(name), files / folder / name)
            os.chmod(files / folder / name, 0o755)
