"""An invalid kubeconfig results in one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj.main import main

GARBAGE = {
    "a text": "hello",
    "a number": "3",
    "a list": "- a\n- b",
    "no YAML": "a: [",
    "binary": "\x00\x01",
    "contexts are a text": "contexts: x\ncurrent-context: x",
    "contexts are numbers": "contexts: [1]\ncurrent-context: 1",
    "a context without its body": "contexts: [{name: a}]\ncurrent-context: a",
    "a context that is a text": "contexts: [{name: a, context: x}]\ncurrent-context: a",
    "clusters are a map": (
        "current-context: a\nclusters: {a: 1}\nusers: []\ncontexts: [{name: a, context: {cluster: a, user: a}}]"
    ),
    "a certificate that is none": (
        "current-context: a\n"
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1', certificate-authority-data: '%%'}}]\n"
        "users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]"
    ),
    "a user that is a list": (
        "current-context: a\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "users: [{name: a, user: [1]}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]"
    ),
    "empty": "",
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_kubeconfig_is_one_line_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert main(["get", "--kubeconfig", str(path)]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dtj: ")
    assert str(path) in line or "check --kubeconfig" in line


def test_missing_kubeconfig_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nope"))
    assert main(["get"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "nope") in line
    assert "dtj run job.yaml" in line
