"""The contents of the images, and how they run without any privilege."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.images.conftest import Run

# These tests need the Docker engine and the images of `make images`, which is part of `make deploy`.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
VERSION = (ROOT / "VERSION").read_text().strip()
ALL = ("operator", "torch", "trainer")
Inspect = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize("image", ALL)
def test_image_has_an_unprivileged_user_and_labels(inspect: Inspect, image: str) -> None:
    config = inspect(image)["Config"]
    assert config["User"] == "65532:65532"
    labels = {k.removeprefix("org.opencontainers.image."): v for k, v in config["Labels"].items()}
    assert labels["title"] == f"dtj-{image}"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["description"]
    if image != "torch":
        assert labels["version"] == VERSION
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["revision"])


@pytest.mark.parametrize("image", ALL)
def test_image_has_no_build_tools_and_no_package_caches(run: Run, image: str) -> None:
    tools = "cc gcc g++ clang make cmake ld as ar rustc cargo go git"
    found = run(image, "sh", "-c", f"for tool in {tools}; do command -v $tool; done; true").stdout.split()
    assert found == []
    # Our layers write only to these folders; the base image answers for the others.
    patterns = r"-path */.cache/pip -o -name *.whl -o -name *.tar.gz".replace("*", r"\*")
    done = run(image, "sh", "-c", f"find /opt /usr/local /dtj /root /tmp {patterns} 2>/dev/null")
    assert [path for path in done.stdout.split() if "/ensurepip/" not in path and "/tests/" not in path] == []


@pytest.mark.parametrize("image", ALL)
def test_user_of_the_image_can_write_none_of_its_files(run: Run, image: str) -> None:
    """Holds even if the root file system is writable."""
    skipped = " -o ".join(f"-path {path}" for path in ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/run/lock"))
    writable = "\\( -type f -o -type d \\) -writable -print"
    done = run(image, "sh", "-c", f"find / -xdev \\( {skipped} \\) -prune -o {writable} 2>/dev/null")
    assert done.stdout.split() == []


def test_operator_starts_with_a_read_only_root(run: Run) -> None:
    done = run("operator", "dtj-operator", "--help")
    assert done.returncode == 0, done.stderr
    assert "--master-key-file" in done.stdout
    wrong = run("operator", "dtj-operator", "--agent-image=x", "--master-key-file=/nowhere")
    assert wrong.returncode == 2
    assert "--master-key-file: /nowhere can't be read" in wrong.stderr


def test_operator_image_has_no_package_installer_and_no_torch(run: Run) -> None:
    for module in ("pip", "torch"):
        done = run("operator", "python3", "-c", f"import {module}")
        assert "ModuleNotFoundError" in done.stderr
    assert run("operator", "sh", "-c", "command -v pip || command -v pip3").returncode != 0


def test_agent_runs_after_cp_copied_it_into_a_pod(run: Run) -> None:
    """Without its environment, the agent names the missing variables and exits with 2."""
    script = "cp /dtj/agent.pyz /dtj/bin/ && exec python3 /dtj/bin/agent.pyz -- true"
    done = run("operator", "sh", "-c", script, options=("--tmpfs=/dtj/bin:mode=1777",))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "DTJ_" in done.stdout


def test_agent_runs_in_an_image_without_our_code(references: dict[str, str], tmp_path: Path, run: Run) -> None:
    container = subprocess.run(
        ["docker", "create", references["operator"]], capture_output=True, text=True, timeout=30, check=True
    ).stdout.strip()
    try:
        subprocess.run(
            ["docker", "cp", f"{container}:/dtj/agent.pyz", str(tmp_path)], timeout=30, check=True, capture_output=True
        )
    finally:
        subprocess.run(["docker", "rm", container], timeout=30, check=True, capture_output=True)
    tmp_path.chmod(0o755)
    done = run("torch", "python3", "/agent/agent.pyz", "--", "true", options=("-v", f"{tmp_path}:/agent:ro"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "DTJ_" in done.stdout
    assert "ModuleNotFoundError" in run("torch", "python3", "-c", "import dtj_agent").stderr


def test_torch_trains_with_a_read_only_root(run: Run) -> None:
    script = (
        "import torch, numpy; x = torch.ones(2, requires_grad=True); (x * x).sum().backward(); print(x.grad.tolist())"
    )
    done = run("torch", "python3", "-c", script, timeout=120)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr


def test_library_is_found_compiled_and_versioned_with_any_pythonpath(run: Run) -> None:
    script = """
import importlib.metadata, importlib.util, os.path, dtj_trainer, dtj_contract.names
assert os.path.exists(dtj_trainer.__cached__), dtj_trainer.__cached__
torch = importlib.util.find_spec("torch").cached
assert os.path.exists(torch), torch
print(importlib.metadata.version("dtj-trainer"))
"""
    done = run("trainer", "python3", "-c", script, options=("-e", "PYTHONPATH=/somewhere"))
    assert done.stdout.strip() == VERSION, done.stderr


@pytest.mark.parametrize(
    ("image", "locks"), [("operator", ["operator"]), ("torch", ["torch"]), ("trainer", ["torch", "trainer"])]
)
def test_libraries_are_exactly_the_locked_ones(run: Run, image: str, locks: list[str]) -> None:
    locked: dict[str, str] = {}
    for lock in locks:
        text = (ROOT / f"requirements/{lock}.lock").read_text()
        locked |= dict(re.findall(r"^([a-zA-Z0-9._-]+)==([^ \\;]+)", text, re.M))
    script = """
import importlib.metadata as metadata, json, sys
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""
    installed = json.loads(run(image, "python3", "-c", script, *locked).stdout)
    if "+" in (installed.get("torch") or ""):
        # A build from another index (TORCH_INDEX_URL) has the same version and other dependencies.
        installed["torch"] = installed["torch"].partition("+")[0]
        locked = {k: v for k, v in locked.items() if not re.fullmatch("triton|cuda-.*|nvidia-(?!ml-py).*", k)}
    assert {name: installed[name] for name in locked} == locked


def test_our_code_is_in_the_layers_above_torch(inspect: Inspect) -> None:
    """A change of code then moves a layer of kilobytes."""
    torch, trainer = (inspect(image)["RootFS"]["Layers"] for image in ("torch", "trainer"))
    assert trainer[: len(torch)] == torch
    assert len(trainer) - len(torch) <= 3


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_last_layer_is_small(references: dict[str, str], image: str) -> None:
    history = [
        "docker",
        "history",
        "--no-trunc",
        "--human=false",
        "--format",
        "{{.Size}} {{.CreatedBy}}",
        references[image],
    ]
    lines = subprocess.run(history, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    size, what = lines[0].split(" ", 1)
    assert "COPY" in what
    assert int(size) < 5_000_000
