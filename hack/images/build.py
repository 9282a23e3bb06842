"""Builds and pushes the images that the registry lacks. An unchanged tree costs a few digests and three requests."""

from __future__ import annotations

import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.cluster import baseimage, docker, engine, registry
from hack.cluster.shell import ProvisionError, output, run, succeeds
from hack.cluster.shell import log as cluster_log
from hack.images import recipes
from hack.images.recipes import IMAGES, ROOT, STATE, Image

# torch alone is a download of 2.5 GB and 5 GB unpacked, and the first push compresses all of it.
BUILD_TIMEOUT = 3000
PUSH_TIMEOUT = 1200
EXAMPLES_IMAGE = "dtj-trainer:cpu"
MANIFESTS = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"


def log(message: str) -> None:
    cluster_log(f"images: {message}")


def ensure() -> dict[str, str]:
    """Publishes every image, so that the nodes can pull it. Returns the references by name. Raises ProvisionError."""
    remembered = _remembered()
    base, base_id = _ground(remembered)
    # The trainer's lower layers are torch's, so torch is published first.
    with ThreadPoolExecutor(2) as pool:
        operator = pool.submit(_publish, [recipes.OPERATOR], base, base_id)
        others = _publish([recipes.TORCH, recipes.TRAINER], base, base_id)
        references = operator.result() | others
    if references["trainer"] != remembered.get("trainer") or not _pushed(_alias(EXAMPLES_IMAGE)):
        _name_for_examples(references["trainer"], EXAMPLES_IMAGE)
    STATE.parent.mkdir(exist_ok=True)
    aside = STATE.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps({"base": base, **references}, indent=1) + "\n")
    aside.replace(STATE)
    return references


def _ground(remembered: dict[str, str]) -> tuple[str, str]:
    """Returns the base image and its id, with engine and registry at hand."""
    engine.ensure()
    if not registry.answers():
        raise ProvisionError(f"no registry answers at {registry.address()}: run `make cluster-up` first")
    base = _base(remembered.get("base"))
    return base, output(["docker", "image", "inspect", "-f", "{{.Id}}", base], timeout=20)


def _alias(name: str) -> str:
    """Returns where the nodes look an image up that examples/ and the tutorial name."""
    return f"{registry.address()}/library/{name}"


def _name_for_examples(reference: str, name: str) -> None:
    """Pushes an image under the name that examples/ and the tutorial use."""
    if not docker.image_exists(reference):
        run(["docker", "pull", "--quiet", reference], timeout=PUSH_TIMEOUT)
    run(["docker", "tag", reference, _alias(name)], timeout=20)
    run(["docker", "push", "--quiet", _alias(name)], timeout=PUSH_TIMEOUT)


def names() -> dict[str, str]:
    """Returns the references of the last `make images`, even if the tree has changed since."""
    remembered = _remembered()
    if not all(image.name in remembered for image in IMAGES):
        raise ProvisionError("no images were built from this tree yet: run `make images` first")
    return {image.name: remembered[image.name] for image in IMAGES}


def frameworks() -> dict[str, str]:
    """Publishes the image of tests/e2e/on_frameworks.py, on top of the torch image of the last build.

    Returns the reference by its name. Raises ProvisionError.
    """
    if not (ROOT / recipes.FRAMEWORKS.inputs[0] / "constraints.txt").exists():
        raise ProvisionError("the versions are not known yet: run `hack/frameworks.sh --install` first")
    torch = names()["torch"]
    engine.ensure()
    if not docker.image_exists(torch):
        run(["docker", "pull", "--quiet", torch], timeout=PUSH_TIMEOUT)
    torch_id = output(["docker", "image", "inspect", "-f", "{{.Id}}", torch], timeout=20)
    return _publish([recipes.FRAMEWORKS], torch, torch_id)


def mlflow() -> dict[str, str]:
    """Publishes the image of MLflow's server for tests/e2e/on_tracking.py.

    Returns the reference by its name. Raises ProvisionError.
    """
    return _publish([recipes.MLFLOW], *_ground(_remembered()))


def engines(chosen: Sequence[str] = ()) -> dict[str, str]:
    """Publishes the images of these engines, by default of all, also under the names that examples/ use.

    Returns the references by name. Raises ProvisionError.
    """
    base, base_id = _ground(_remembered())
    references: dict[str, str] = {}
    for name in chosen or recipes.ENGINES:
        image = recipes.ENGINES[name]
        references |= _publish([image], base, base_id)
        _name_for_examples(references[image.name], f"{image.repository}:cpu")
    return references


def _publish(images: Sequence[Image], base: str, base_id: str) -> dict[str, str]:
    references: dict[str, str] = {}
    for image in images:
        with tempfile.TemporaryDirectory(prefix="dtj-image-") as place:
            context = Path(place)
            recipes.snapshot(image, context)
            reference = f"{registry.address()}/{image.repository}:{recipes.tag(image, context, base, base_id)}"
            if not _pushed(reference):
                _build(image, context, recipes.arguments(image, base), reference)
                began = time.monotonic()
                run(["docker", "push", "--quiet", reference], timeout=PUSH_TIMEOUT)
                log(f"pushed {reference} in {time.monotonic() - began:.1f} s")
        references[image.name] = reference
    return references


def _build(image: Image, context: Path, arguments: dict[str, str], reference: str) -> None:
    began = time.monotonic()
    command = ["docker", "build", "--quiet", "--network=host", "-f", str(context / image.dockerfile), "-t", reference]
    for name, value in (arguments | {"REVISION": _revision()}).items():
        command += ["--build-arg", f"{name}={value}"]
    command += ["--target", image.target] if image.target else []
    # Use the classic builder where BuildKit's plugin is missing.
    builder = {} if succeeds(["docker", "buildx", "version"], timeout=20) else {"DOCKER_BUILDKIT": "0"}
    run([*command, str(context)], timeout=BUILD_TIMEOUT, env=builder)
    log(f"built {reference} in {time.monotonic() - began:.1f} s")


def _base(last: str | None) -> str:
    """Returns BASE_IMAGE, else the previous base image if it still exists, else the public one or its stand-in."""
    chosen = os.environ.get("BASE_IMAGE") or (last if last and docker.image_exists(last) else baseimage.python_image())
    if not docker.image_exists(chosen):
        run(["docker", "pull", "--quiet", chosen], timeout=600)
    return chosen


def _pushed(reference: str) -> bool:
    host, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    address = host.replace("localhost", "127.0.0.1")
    request = urllib.request.Request(f"http://{address}/v2/{repository}/manifests/{tag}", method="HEAD")
    request.add_header("Accept", MANIFESTS)
    try:
        with urllib.request.urlopen(request, timeout=10):
            return True
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise ProvisionError(
            f"the registry at {host} answered {error.code} to a request for {repository}:{tag}"
        ) from error
    except OSError as error:
        raise ProvisionError(f"no response from the registry at {host} for {repository}:{tag}: {error}") from error


def _revision() -> str:
    """Returns the commit, with `-dirty` if the tree has changes, or "" outside a git work tree."""
    done = run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], timeout=20, cwd=ROOT, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _remembered() -> dict[str, str]:
    try:
        return dict(json.loads(STATE.read_text()))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ProvisionError(f"{STATE} is damaged ({error}): delete it") from error
