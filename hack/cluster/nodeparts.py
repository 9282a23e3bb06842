"""The Kubernetes release that `kind build node-image` takes: a server tarball, made of our own builds.

kind expects four image archives in the tarball. kind reads an archive's tags from whichever of `repositories` and
`manifest.json` comes first (from the latter only the first image's), and matches them by full name, `docker.io/`
included. Our archives therefore have `repositories` first, and full names.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import tempfile
from pathlib import Path

from hack.cluster import baseimage, docker, gobuild
from hack.cluster.shell import ProvisionError, log, output, run
from hack.cluster.versions import KUBERNETES, TOOLS

_SCRATCH = 'FROM scratch\nCOPY {name} {path}\nENTRYPOINT ["{path}"]\n'
# kubeadm's manifests and kind's call their programs by bare name, so each has to be on PATH.
_ON_PATH = "FROM scratch\nENV PATH=/usr/local/bin\nCOPY {name} /usr/local/bin/{name}\n"
_KUBE_PROXY = """FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends iptables conntrack nftables kmod \\
 && rm -rf /var/lib/apt/lists/*
COPY kube-proxy /usr/local/bin/kube-proxy
"""


def kind_source() -> Path:
    return Path(gobuild.download(TOOLS["kind"])["Dir"])


def image_names() -> dict[str, str]:
    """Returns the image name of each program, as kubeadm and this version of kind expect it."""
    command = ["config", "images", "list", "--kubernetes-version", f"v{KUBERNETES}"]
    names = {}
    for image in output([gobuild.binary("kubeadm"), *command], timeout=30).splitlines():
        names[image.rpartition("/")[2].rpartition(":")[0]] = image
    source = kind_source()
    config = (source / "images/base/files/etc/containerd/config.toml").read_text()
    names["pause"] = _only(r'sandbox_image = "([^"]+)"', config)
    storage = (source / "pkg/build/nodeimage/const_storage.go").read_text()
    names["local-path-provisioner"] = _only(r'storageProvisionerImage = "([^"]+)"', storage)
    names["local-path-helper"] = _only(r'storageHelperImage = "([^"]+)"', storage)
    network = (source / "pkg/build/nodeimage/const_cni.go").read_text()
    names["kindnetd"] = _only(r'kindnetdImage = "([^"]+)"', network)
    return names


def _only(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    if len(found) != 1:
        raise ProvisionError(
            f"kind's sources changed: {pattern} found {len(found)} times; hack/cluster/nodeparts.py reads them"
        )
    return str(found[0])


def server_tarball(target: Path) -> None:
    """Builds the images and packs them with the node's own programs."""
    names = image_names()
    base = baseimage.build_base()
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        work = Path(place)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "coredns"):
            path = "/coredns" if name == "coredns" else f"/usr/local/bin/{name}"
            text = _SCRATCH if name == "coredns" else _ON_PATH
            _image(work, names[name], name, text.format(name=name, path=path))
        _image(
            work,
            names["local-path-provisioner"],
            "local-path-provisioner",
            _ON_PATH.format(name="local-path-provisioner"),
        )
        _image(work, names["pause"], "pause", _SCRATCH.format(name="pause", path="/pause"))
        _image(work, names["kube-proxy"], "kube-proxy", _KUBE_PROXY.format(base=base))
        # The helper needs `sh`, `mkdir` and `rm`, which Debian has.
        run(["docker", "tag", base, names["local-path-helper"]], timeout=20)
        # kindnetd can't be built as a Go module. kind only checks the name, and our network needs no daemon.
        run(["docker", "tag", names["pause"], names["kindnetd"]], timeout=20)
        _pack(work, names, target)


def _image(work: Path, image: str, program: str, dockerfile: str) -> None:
    context = work / f"context-{program}"
    context.mkdir()
    docker.copy_program(gobuild.binary(program), context)
    docker.build(image, context, dockerfile)


def _pack(work: Path, names: dict[str, str], target: Path) -> None:
    alone = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    archives = {name: [names[name]] for name in alone}
    # kind loads four archives; the last one holds all other images.
    archives["kube-proxy"] = [image for name, image in names.items() if name not in alone]
    log("packing the server tarball")
    # Compression would be wasted: the tarball is read once, on this machine.
    with tarfile.open(target, "w:gz", compresslevel=0) as packed:
        version = f"v{KUBERNETES}\n".encode()
        _add(packed, "kubernetes/version", version)
        for name in ("kubeadm", "kubelet", "kubectl"):
            packed.add(gobuild.binary(name).resolve(), f"kubernetes/server/bin/{name}")
        for name, images in archives.items():
            saved = work / f"{name}.saved.tar"
            run(["docker", "save", "-o", saved, *images], timeout=300)
            rewritten = work / f"{name}.tar"
            rewrite(saved, rewritten, images)
            saved.unlink()
            packed.add(rewritten, f"kubernetes/server/bin/{name}.tar")
            rewritten.unlink()


def rewrite(saved: Path, target: Path, images: list[str]) -> None:
    """Rewrites an archive of `docker save` with its tags in the form that kind reads (see the top of this file)."""
    full = {image.removeprefix("docker.io/"): image for image in images}
    repositories: dict[str, dict[str, str]] = {}
    for image in images:
        repository, _, tag = image.rpartition(":")
        repositories.setdefault(repository, {})[tag] = ""
    with tarfile.open(saved) as old, tarfile.open(target, "w") as new:
        found = old.extractfile("manifest.json")
        if found is None:
            raise ProvisionError(f"{saved}: `docker save` wrote no manifest.json")
        manifest = json.load(found)
        for item in manifest:
            item["RepoTags"] = [full[tag.removeprefix("docker.io/")] for tag in item["RepoTags"] or []]
        _add(new, "repositories", json.dumps(repositories).encode())
        _add(new, "manifest.json", json.dumps(manifest).encode())
        for member in old:
            # kind would prefer an OCI index, which has the short names.
            if member.name not in ("repositories", "manifest.json", "index.json", "oci-layout"):
                new.addfile(member, old.extractfile(member) if member.isfile() else None)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
