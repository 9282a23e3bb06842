"""A tag depends on the content alone, and needs no Docker."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hack.cluster.shell import ProvisionError
from hack.images import build, recipes
from hack.images.recipes import ENGINES, FRAMEWORKS, IMAGES, MLFLOW, OPERATOR, ROOT, TORCH, TRAINER, Image


def tag(image: Image, context: Path) -> str:
    return recipes.tag(image, context, "base:1", "sha256:1")


@pytest.mark.parametrize(
    ("image", "file"),
    [
        (OPERATOR, "operator/src/dtj_operator/app.py"),
        (OPERATOR, "contract/src/dtj_contract/names.py"),
        (OPERATOR, "requirements/operator.lock"),
        (OPERATOR, "Dockerfile"),
        (TORCH, "requirements/torch.lock"),
        (TRAINER, "trainer-image/src/dtj_trainer/__init__.py"),
        (TRAINER, "requirements/torch.lock"),
        (TRAINER, "requirements/trainer.lock"),
        (TRAINER, ".dockerignore"),
        (ENGINES["deepspeed"], "requirements/engines/deepspeed.lock"),
        (ENGINES["horovod"], "requirements/engines/horovod-build.lock"),
        (ENGINES["jax"], "requirements/engines/jax.lock"),
        (ENGINES["ray"], "requirements/torch.lock"),
        (ENGINES["tensorflow"], "trainer-image/src/dtj_trainer/rank.py"),
    ],
)
def test_changed_file_changes_the_tag(image: Image, file: str, tmp_path: Path) -> None:
    recipes.snapshot(image, tmp_path)
    before = tag(image, tmp_path)
    assert tag(image, tmp_path) == before
    with (tmp_path / file).open("a") as handle:
        handle.write("\n#\n")
    assert tag(image, tmp_path) != before


def test_base_image_and_torch_index_change_the_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    recipes.snapshot(TORCH, tmp_path)
    before = tag(TORCH, tmp_path)
    assert recipes.tag(TORCH, tmp_path, "base:1", "sha256:2") != before
    monkeypatch.setenv("TORCH_INDEX_URL", "https://example.org/cpu")
    assert tag(TORCH, tmp_path) != before


def test_bytecode_beside_the_sources_is_left_out(tmp_path: Path) -> None:
    recipes.snapshot(TRAINER, tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.name == "__pycache__" or p.suffix == ".pyc"]


@pytest.mark.parametrize("image", [*IMAGES, *ENGINES.values(), MLFLOW], ids=lambda image: image.name)
def test_build_context_has_all_files_that_the_dockerfile_copies(image: Image, tmp_path: Path) -> None:
    recipes.snapshot(image, tmp_path)
    text = (tmp_path / image.dockerfile).read_text()
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M) for name in line.split()]
    assert copied
    assert [name for name in copied if not (tmp_path / name).exists()] == []


@pytest.mark.parametrize(
    ("image", "stages"),
    [
        (TORCH, "torch"),
        (TRAINER, "torch libraries code trainer"),
        (ENGINES["deepspeed"], "torch libraries code deepspeed-wheels deepspeed"),
        (ENGINES["horovod"], "torch libraries code horovod-wheels horovod"),
        (ENGINES["jax"], "code plain jax"),
        (ENGINES["ray"], "torch libraries code ray"),
        (ENGINES["tensorflow"], "code plain tensorflow"),
    ],
    ids=lambda value: value.name if isinstance(value, Image) else "",
)
def test_build_has_only_the_stages_that_its_target_needs(image: Image, stages: str, tmp_path: Path) -> None:
    recipes.snapshot(image, tmp_path)
    text = (tmp_path / image.dockerfile).read_text()
    assert re.findall(r"^FROM \S+ AS (\S+)", text, re.M) == stages.split()
    assert "ARG BASE_IMAGE=" in text.split("FROM")[0]


def test_changed_engine_changes_no_tag_of_the_trainer(tmp_path: Path) -> None:
    text = (ROOT / TRAINER.dockerfile).read_text()
    changed = text.replace("FROM plain AS jax\n", "FROM plain AS jax\nENV A=B\n")
    assert changed != text
    assert recipes.needed_stages(changed, "trainer") == recipes.needed_stages(text, "trainer")
    assert recipes.needed_stages(changed, "jax") != recipes.needed_stages(text, "jax")


def test_trainer_is_the_default_target_of_its_dockerfile() -> None:
    assert (ROOT / TRAINER.dockerfile).read_text().endswith("\nFROM trainer\n")


@pytest.mark.parametrize(
    ("dockerfile", "project"), [("Dockerfile", "operator"), ("trainer-image/Dockerfile", "trainer-image")]
)
def test_default_version_of_an_image_is_its_distributions(dockerfile: str, project: str) -> None:
    version = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in (ROOT / dockerfile).read_text()


@pytest.mark.parametrize(
    "dockerfile", ["Dockerfile", "trainer-image/Dockerfile", FRAMEWORKS.dockerfile, MLFLOW.dockerfile]
)
def test_dockerfile_needs_only_the_classic_builder(dockerfile: str) -> None:
    text = (ROOT / dockerfile).read_text()
    for only_buildkit in (
        "--mount",
        "--link",
        "--chmod",
        "--exclude",
        "--security",
        "<<",
        "# syntax",
        "TARGETPLATFORM",
    ):
        assert only_buildkit not in text
    assert "ARG BASE_IMAGE=" in text.split("FROM")[0]


def test_names_before_the_first_build_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "STATE", tmp_path / "images.json")
    with pytest.raises(ProvisionError, match="run `make images` first"):
        build.names()
