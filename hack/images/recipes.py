"""What the images are made of, so that a tag can be told from the files alone, without a build."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hack.cluster import cache

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".dtj" / "images.json"


@dataclass(frozen=True, kw_only=True)
class Image:
    name: str
    """What others call it: `hack.images names` prints `name=reference`."""
    dockerfile: str
    target: str | None = None
    inputs: tuple[str, ...]
    """Files and folders that its COPY lines name: the build sees nothing else."""

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
TRAINER = Image(
    name="trainer",
    dockerfile="trainer-image/Dockerfile",
    target="trainer",
    inputs=(
        *TORCH.inputs,
        "requirements/trainer.lock",
        "hack/images/install_tree.py",
        "contract",
        "agent",
        "trainer-image/pyproject.toml",
        "trainer-image/src",
    ),
)
IMAGES = (OPERATOR, TORCH, TRAINER)


def arguments(image: Image, base: str) -> dict[str, str]:
    """Build arguments that change what is in the image. TORCH_INDEX_URL: see trainer-image/Dockerfile."""
    chosen = {"BASE_IMAGE": base}
    index = os.environ.get("TORCH_INDEX_URL")
    if index and image is not OPERATOR:
        chosen["TORCH_INDEX_URL"] = index
    return chosen


def snapshot(image: Image, folder: Path) -> None:
    """Copy what the image is made of: what is built is what was counted, whatever is written in the tree meanwhile."""
    for name in (image.dockerfile, ".dockerignore", *image.inputs):
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info"))
        else:
            shutil.copy(source, copy)


def tag(image: Image, folder: Path, base: str, base_id: str) -> str:
    """Equal content, equal tag: of every file's digest, the arguments and the base image's id."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return cache.key(digests, arguments(image, base), base_id, image.target)
