"""The command line: versions, missing libraries and mistyped verbs."""

from __future__ import annotations

import importlib
from importlib import metadata

import pytest

from dtj.main import DISTRIBUTION, main


def test_version_is_that_of_the_distribution(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", {DISTRIBUTION: "1.2.3"}.__getitem__)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "dtj 1.2.3\n"


def test_uninstalled_source_tree_has_verbs_and_no_version(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert main(["run", "none.yaml"]) == 2
    with pytest.raises(SystemExit):
        main(["--version"])
    assert "not installed" in capsys.readouterr().out


def test_missing_library_names_no_package_to_install_from_an_index(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError("No module named 'kubernetes'", name="kubernetes")

    monkeypatch.setattr(importlib, "import_module", absent)
    assert main(["get"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dtj: kubernetes is not installed for ")
    assert "README.md describes how to install dtj-client" in line
    assert "pip install" not in line


@pytest.mark.parametrize(
    ("verb", "meant"),
    [
        ("apply", "submit"),
        ("cancel", "delete"),
        ("list", "get"),
        ("describe", "get"),
        ("status", "get"),
        ("rnu", "run"),
    ],
)
def test_unknown_verb_suggests_the_meant_one(capsys: pytest.CaptureFixture[str], verb: str, meant: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "x"])
    assert ended.value.code == 2
    assert f"dtj {meant}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_file_is_accepted_with_and_without_its_flag(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([verb, "none.yaml"], [verb, "-f", "none.yaml"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err == "dtj: none.yaml: No such file or directory\n"


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_verb_without_its_file_is_a_usage_error(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([verb], [verb, "a.yaml", "-f", "b.yaml"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "FILE" in capsys.readouterr().err
