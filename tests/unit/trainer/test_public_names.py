"""The public face of dtj_trainer: names resolve, and importing the package alone stays cheap."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import dtj_trainer


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, dtj_trainer; dir(dtj_trainer); print([m for m in ('torch', 'numpy', 'yaml') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert printed.stdout == "[]\n"


@pytest.mark.parametrize("name", dtj_trainer.__all__)
def test_public_name_resolves_to_an_object_of_that_name(name: str) -> None:
    found = getattr(dtj_trainer, name)
    assert found.__name__ == name
    assert found.__module__.startswith("dtj_trainer.")
    assert name in dir(dtj_trainer)


@pytest.mark.parametrize(
    "name",
    [
        "cli.Task",
        "cli.guarded",
        "config.TrainerConfig",
        "data.source.TensorData",
        "errors.ConfigError",
        "state.State",
        "trainer.Trainer",
    ],
)
def test_module_path_of_the_changelog_has_the_public_object(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(f"dtj_trainer.{module}"), attribute)
    assert found is getattr(dtj_trainer, attribute)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainr'"):
        dtj_trainer.Trainr  # noqa: B018


def test_every_public_name_has_a_module() -> None:
    assert sorted(dtj_trainer._MODULES) == dtj_trainer.__all__
