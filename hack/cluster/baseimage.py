"""Stand-ins for `debian:bookworm-slim` and `python:3.11-slim-bookworm`, built from Debian's packages."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hack.cluster import cache, docker, engine, packages
from hack.cluster.shell import ProvisionError, log, output, run
from hack.cluster.versions import DEBIAN

PUBLIC_PYTHON = "python:3.11-slim-bookworm"
PYTHON = f"dtj-python:3.11-{DEBIAN}"
BASE = f"dtj-base:{DEBIAN}"
RECIPE = 1
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# Certificate authorities that this machine trusts beyond Debian's, behind a TLS-inspecting proxy for example.
EXTRA_AUTHORITIES = Path("/usr/local/share/ca-certificates")

_PYTHON_DOCKERFILE = f"""FROM {BASE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-venv \\
 && rm -rf /var/lib/apt/lists/* \\
 && ln -s /usr/bin/python3 /usr/local/bin/python \\
 && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
ENV PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 LANG=C.UTF-8
CMD ["python3"]
"""


def python_image() -> str:
    """Returns the image to pass as BASE_IMAGE to this project's Dockerfiles; builds it where it can't be pulled."""
    engine.ensure()
    if docker.public_images():
        return PUBLIC_PYTHON
    build_base()
    # As in the public image, `pip install` writes to the system: the container is the environment.
    _current(PYTHON, cache.key(build_base_key(), _PYTHON_DOCKERFILE), _PYTHON_DOCKERFILE)
    return PYTHON


def build_base() -> str:
    """Builds a minimal Debian with this machine's certificate authorities and package sources. Returns the tag."""
    key = build_base_key()
    tagged = f"{BASE}-{key}"
    with cache.lock("base-image"):
        if not docker.image_exists(tagged):
            archive = cache.entry("rootfs", f"{DEBIAN}-{key}", _debootstrap) / "rootfs.tar"
            log(f"importing {BASE}")
            # Without these, pip and Python's ssl use their own bundles.
            settings = f"ENV PIP_CERT={BUNDLE} SSL_CERT_FILE={BUNDLE} REQUESTS_CA_BUNDLE={BUNDLE}"
            run(["docker", "import", "--change", settings, "--change", 'CMD ["bash"]', archive, tagged], timeout=300)
    run(["docker", "tag", tagged, BASE], timeout=20)
    return BASE


def _current(name: str, key: str, dockerfile: str) -> None:
    tagged = f"{name}-{key}"
    with cache.lock(f"image-{key}"), tempfile.TemporaryDirectory() as context:
        if not docker.image_exists(tagged):
            docker.build(tagged, Path(context), dockerfile)
    run(["docker", "tag", tagged, name], timeout=20)


def build_base_key() -> str:
    authorities = [path.read_text() for path in _extra_authorities()]
    return cache.key(RECIPE, DEBIAN, authorities, _sources())


def _extra_authorities() -> list[Path]:
    return sorted(EXTRA_AUTHORITIES.rglob("*.crt")) if EXTRA_AUTHORITIES.is_dir() else []


def _sources() -> list[str]:
    """Returns this machine's package sources for the release. Raises ProvisionError if there are none."""
    if shutil.which("apt-get") is None:
        raise ProvisionError(
            "the base image is built from this machine's Debian package sources, and apt-get is missing here"
        )
    listed = output(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        timeout=30,
    )
    found = []
    for line in sorted(set(listed.splitlines())):
        uri, release, component = line.split(" ", 2)
        if release.split("-")[0] == DEBIAN and component == "main":
            found.append(f"deb {uri} {release} main")
    if not any(line.split()[2] == DEBIAN for line in found):
        raise ProvisionError(
            f"the base image is built from Debian {DEBIAN}: add its main component to this machine's apt sources"
        )
    return found


def _debootstrap(folder: Path) -> None:
    packages.need("debootstrap", "tar")
    if not packages.can_install():
        raise ProvisionError("the base image is built by debootstrap, which needs root")
    sources = _sources()
    mirror = next(line.split()[1] for line in sources if line.split()[2] == DEBIAN)
    log(f"debootstrap {DEBIAN} (once)")
    system = folder / "rootfs"
    run(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates", DEBIAN, system, mirror],
        timeout=900,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    (system / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
    for path in _extra_authorities():
        shutil.copy(path, system / "usr/local/share/ca-certificates" / path.name)
    run(["chroot", system, "update-ca-certificates"], timeout=60)
    for useless in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man"):
        # Debian's slim images lack these too.
        for path in (system / useless).iterdir() if (system / useless).is_dir() else ():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (system / "var/cache/apt/archives/partial").mkdir(parents=True)
    # Docker creates its own /dev.
    run(["tar", "-C", system, "--numeric-owner", "--exclude=./dev/*", "-cf", folder / "rootfs.tar", "."], timeout=120)
    shutil.rmtree(system)
