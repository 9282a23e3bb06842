"""Each release is one command and a dry run by default, and builds distributions with our names."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from hack import release, version
from hack.images import recipes

ROOT = Path(__file__).parents[3]
KINDS = ("wheels", "images", "chart")
OURS = {"dtj-agent", "dtj-client", "dtj-contract", "dtj-core", "dtj-operator", "dtj-trainer"}


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: object, **_: object) -> None:
        raise AssertionError(f"a dry run started {command}")

    monkeypatch.setattr(subprocess, "run", refuse)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("nothing_runs")
def test_release_is_a_dry_run_by_default(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("dry run ") for line in lines)


@pytest.mark.parametrize("image", recipes.ENGINES.values(), ids=recipes.ENGINES)
@pytest.mark.usefixtures("nothing_runs")
def test_images_of_all_engines_are_released(image: recipes.Image, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["images"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(f"--target {image.target} " in line and f"/{image.repository}:" in line for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_make_has_one_command_for_each_release(kind: str) -> None:
    command = ["make", "--no-print-directory", f"release-{kind}", "REGISTRY=ghcr.io/you"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert all(line.startswith("dry run ") for line in done.stdout.splitlines())
    if kind != "wheels":
        assert "ghcr.io/you/" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_build_runs_no_step_that_leaves_the_machine(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(" ".join(command)))
    assert release.main([kind, "--build"]) == 0
    assert ran
    assert not [command for command in ran if "push" in command or "publish" in command]
    dry = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dry run ")]
    assert all("push" in line or "publish" in line for line in dry)


@pytest.mark.parametrize(
    ("status", "tags", "arguments", "why"),
    [
        (" M README.md", "v0.1.0", ["chart", "--registry", "r"], "uncommitted changes"),
        ("", "v0.0.9", ["wheels"], "does not carry the tag v"),
        ("", "all", ["images"], "--registry"),
    ],
)
def test_publish_without_a_clean_tagged_tree_and_a_registry_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: str,
    tags: str,
    arguments: list[str],
    why: str,
) -> None:
    marks = f"v{release.version()}" if tags == "all" else tags
    monkeypatch.setattr(release, "_git", lambda verb, *_: status if verb == "status" else marks)
    monkeypatch.setattr(release, "execute", lambda *_, **__: pytest.fail("something was published"))
    assert release.main([*arguments, "--publish"]) == 1
    assert why in capsys.readouterr().err


def test_failed_command_stops_the_release(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        release, "chart", lambda _: [release.Step(command=(sys.executable, "-c", "raise SystemExit(3)"))]
    )
    assert release.main(["chart", "--build"]) == 1
    assert "exit code 3" in capsys.readouterr().err


def test_every_file_states_the_same_version() -> None:
    for path, text in version.stamped().items():
        assert path.read_text("utf-8") == text, path


def test_distributions_have_our_names() -> None:
    projects = [tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"] for name in release.PROJECTS]
    assert {project["name"] for project in projects} == OURS
    siblings = {name for project in projects for name in project["dependencies"] if name.startswith("dtj")}
    assert siblings <= OURS
    assert {command for project in projects for command in project.get("scripts", {})} >= {
        "dtj",
        "dtj-operator",
        "dtj-agent",
    }


def test_wheel_of_the_client_has_the_command_dtj(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "OUT", tmp_path)
    assert release.main(["wheels", "--build"]) == 0
    built = {path.name.partition("-")[0]: path for path in tmp_path.glob("*.whl")}
    assert sorted(built) == sorted(name.replace("-", "_") for name in OURS)
    with zipfile.ZipFile(built["dtj_client"]) as wheel:
        folder = next(name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
        assert "dtj = dtj.main:main" in wheel.read(f"{folder}/entry_points.txt").decode()
        metadata = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
    assert metadata["Name"] == "dtj-client"
    assert "dtj-core" in metadata.get_all("Requires-Dist", [])
