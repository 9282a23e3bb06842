"""TORCH_INDEX_URL names the index of torch; all else comes from the lock. pip is real, its indexes are local."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def wheel(folder: Path, name: str, version: str, *requires: str) -> str:
    """Writes a wheel with one empty module and returns its pip hash."""
    information = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *[f"Requires-Dist: {r}" for r in requires]]
    files = {
        f"{name}.py": "",
        f"{information}/METADATA": "\n".join(metadata) + "\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{information}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {f"{information}/RECORD": record}).items():
            archive.writestr(file, text)
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def index(folder: Path, wheels: list[Path]) -> str:
    """Creates a simple repository (PEP 503) of these files and returns its URL."""
    for path in wheels:
        name = path.name.split("-")[0].replace("_", "-")
        (folder / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)
        links = "".join(f'<a href="{p.name}">{p.name}</a>' for p in sorted((folder / name).glob("*.whl")))
        (folder / name / "index.html").write_text(links)
    return folder.as_uri()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """install.sh with locks, an empty Python environment and two indexes, as (torch's index, folder)."""
    folder = tmp_path / "build"
    folder.mkdir()
    shutil.copy(ROOT / "trainer-image/install.sh", folder)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    hashes = {
        "torch==2.0": wheel(wheels, "torch", "2.0", "numlike", "nvidia-thing"),
        "numlike==1.5": wheel(wheels, "numlike", "1.5"),
        "nvidia-thing==3.0": wheel(wheels, "nvidia_thing", "3.0"),
        "nvidia-ml-py==9.0": wheel(wheels, "nvidia_ml_py", "9.0"),
        "other==4.0": wheel(wheels, "other", "4.0"),
    }
    monkeypatch.setenv("PIP_INDEX_URL", index(tmp_path / "pypi", list(wheels.iterdir())))
    shutil.rmtree(wheels)
    wheels.mkdir()
    wheel(wheels, "torch", "2.0+cpu", "numlike")
    wheel(wheels, "numlike", "1.9")
    torch_index = index(tmp_path / "cpu", list(wheels.iterdir()))
    entries = {name: f"{name} \\\n    --hash={value}\n    # via somebody\n" for name, value in hashes.items()}
    (folder / "torch.lock").write_text("".join(entries[n] for n in ("numlike==1.5", "nvidia-thing==3.0", "torch==2.0")))
    (folder / "trainer.lock").write_text("".join(entries.values()))
    venv.create(tmp_path / "venv", with_pip=False)
    # The script calls `python3 -m pip`; this stand-in installs into the empty environment.
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python3").write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} -m pip --python {tmp_path}/venv/bin/python "$@"\n'
    )
    (commands / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return torch_index, folder


def installed(folder: Path, url: str) -> dict[str, str]:
    for part in ("cuda", "torch", "libraries"):
        command = ["sh", str(folder / "install.sh"), part]
        done = subprocess.run(
            command, env=os.environ | {"TORCH_INDEX_URL": url}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found = folder.parent.glob("venv/lib/python3*/site-packages/*.dist-info")
    return dict(path.name.removesuffix(".dist-info").split("-") for path in found)


def test_install_without_an_index_follows_the_lock(install: tuple[str, Path]) -> None:
    _, folder = install
    expected = {"torch": "2.0", "numlike": "1.5", "nvidia_thing": "3.0", "nvidia_ml_py": "9.0", "other": "4.0"}
    assert installed(folder, "") == expected


def test_install_with_an_index_takes_torch_from_it_and_all_else_from_the_lock(install: tuple[str, Path]) -> None:
    url, folder = install
    assert installed(folder, url) == {"torch": "2.0+cpu", "numlike": "1.5", "nvidia_ml_py": "9.0", "other": "4.0"}


def test_install_rejects_a_file_with_another_hash(install: tuple[str, Path]) -> None:
    _, folder = install
    lock = folder / "trainer.lock"
    text = lock.read_text()
    lock.write_text(text.replace(text.split("sha256:")[-1][:64], "0" * 64))
    done = subprocess.run(
        ["sh", str(folder / "install.sh"), "libraries"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_install_compiles_even_if_processes_must_not_write_bytecode(
    install: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The images set this too, because nothing can be compiled later under a read-only root.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    _, folder = install
    installed(folder, "")
    compiled = {
        path.name.partition(".")[0] for path in folder.parent.glob("venv/lib/python3*/site-packages/__pycache__/*.pyc")
    }
    assert compiled == {"torch", "numlike", "nvidia_thing", "nvidia_ml_py", "other"}
