"""The images' inputs, from which a tag can be computed without a build."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hack.cluster import cache

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".dtj" / "images.json"


@dataclass(frozen=True, kw_only=True)
class Image:
    name: str
    """The name that `hack.images names` prints before the reference."""
    dockerfile: str
    target: str | None = None
    inputs: tuple[str, ...]
    """Files and folders that its COPY lines name; the build sees no others."""

    @property
    def repository(self) -> str:
        return f"dtj-{self.name}"


OPERATOR = Image(
    name="operator",
    dockerfile="Dockerfile",
    inputs=(
        "requirements/operator.lock",
        "hack/images/install_tree.py",
        "contract",
        "core",
        "agent",
        "operator",
    ),
)
TORCH = Image(
    name="torch",
    dockerfile="trainer-image/Dockerfile",
    target="torch",
    inputs=("trainer-image/install.sh", "requirements/torch.lock"),
)
CODE = (
    "hack/images/install_tree.py",
    "contract",
    "agent",
    "trainer-image/pyproject.toml",
    "trainer-image/src",
)
TRAINER = Image(
    name="trainer",
    dockerfile="trainer-image/Dockerfile",
    target="trainer",
    inputs=(*TORCH.inputs, "requirements/trainer.lock", *CODE),
)
IMAGES = (OPERATOR, TORCH, TRAINER)


def _engine(engine: str, *inputs: str) -> Image:
    lock = f"requirements/engines/{engine}.lock"
    return Image(name=f"trainer-{engine}", dockerfile=TRAINER.dockerfile, target=engine, inputs=(*inputs, lock))


ENGINES = {
    "deepspeed": _engine("deepspeed", *TRAINER.inputs),
    "horovod": _engine(
        "horovod", *TRAINER.inputs, "trainer-image/horovod.sh", "requirements/engines/horovod-build.lock"
    ),
    "jax": _engine("jax", *CODE),
    "ray": _engine("ray", *TRAINER.inputs),
    "tensorflow": _engine("tensorflow", *CODE),
}
"""Images by `spec.engine`. Because of their size, `make images` builds none of them; `make images-engines` does."""
FRAMEWORKS = Image(
    name="frameworks",
    dockerfile="hack/images/frameworks.Dockerfile",
    inputs=("build/frameworks",),
)
"""On top of the torch image, for one test; `make images` does not build it."""

MLFLOW = Image(
    name="mlflow",
    dockerfile="hack/images/mlflow.Dockerfile",
    inputs=("requirements/mlflow.lock",),
)
"""In place of MLflow's own image, for one test; `make images` does not build it."""


def arguments(image: Image, base: str) -> dict[str, str]:
    """Returns the build arguments that change the image. TORCH_INDEX_URL is explained in trainer-image/Dockerfile."""
    chosen = {"BASE_IMAGE": base}
    index = os.environ.get("TORCH_INDEX_URL")
    if index and TORCH.inputs[-1] in image.inputs:
        chosen["TORCH_INDEX_URL"] = index
    return chosen


def snapshot(image: Image, folder: Path) -> None:
    """Copies the image's inputs, so that build and tag see the same files even if the tree changes.

    The Dockerfile has only the stages that the image needs.
    """
    for name in (image.dockerfile, ".dockerignore", *image.inputs):
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(
                source,
                copy,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "*.md"),
            )
        else:
            shutil.copy(source, copy)
    if image.target:
        dockerfile = folder / image.dockerfile
        dockerfile.write_text(needed_stages(dockerfile.read_text(), image.target))


def needed_stages(dockerfile: str, target: str) -> str:
    """Returns the Dockerfile without the stages that `target` does not need.

    The classic builder builds every stage that comes before the target. A change of a stage that is left out also
    changes no tag.
    """
    head, *stages = re.split(r"^(?=FROM )", dockerfile, flags=re.M)
    needed, kept = {target}, ""
    # A stage can only name those before it.
    for stage in reversed(stages):
        name = re.match(r"FROM \S+ AS (\S+)", stage)
        if name and name[1] in needed:
            kept = stage + kept
            needed.update(re.findall(r"(?:^FROM |--from=)(\S+)", stage, flags=re.M))
    return head + kept


def tag(image: Image, folder: Path, base: str, base_id: str) -> str:
    """Returns the tag, a digest of all files, the build arguments and the base image's id."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return cache.key(digests, arguments(image, base), base_id, image.target)
