"""The style check finds what CONTRIBUTING.md forbids and leaves good English alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hack import style


def rules(text: str, path: str = "operator/x.py") -> list[str]:
    """Returns the rules that one file breaks, in the order of their lines."""
    return [finding.rule for finding in sorted(style.Source(path, text).findings())]


def function(docstring: str) -> str:
    """Returns a module with one documented function."""
    return f'def f() -> None:\n    """{docstring}"""\n'


@pytest.mark.parametrize(
    "docstring",
    [
        "Returns the pods.",
        "Atomically replaces a file.",
        "Raises ApiError if the API server rejects it.",
        "Passes.",
        "Re-raises.",
    ],
)
def test_docstring_that_opens_with_a_verb_passes(docstring: str) -> None:
    assert rules(function(docstring)) == []


@pytest.mark.parametrize(
    "docstring",
    [
        "The pods.",
        "Return the pods.",
        "Seconds until the end.",
        "Names of the pods.",
        "Process of a rank.",
        "Status.",
        "returns it.",
        "As before.",
    ],
)
def test_docstring_that_opens_with_something_else_is_reported(docstring: str) -> None:
    assert rules(function(docstring)) == ["verb"]


@pytest.mark.parametrize(
    "text",
    [
        'class Pod:\n    """A pod."""\n    @property\n    def name(self) -> str:\n        """The name."""\n',
        'import pytest\n\n@pytest.fixture\ndef pod() -> str:\n    """A pod."""\n',
        'def test_pod_is_named() -> None:\n    """A sentence without a rule."""\n',
        'class Pod:\n    def __init__(self, name: str) -> None:\n        """`name` is its StatefulSet."""\n',
    ],
)
def test_noun_is_allowed_where_it_describes_a_thing(text: str) -> None:
    assert rules(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""What the pods are."""\n', ["opening"]),
        ("# It is late.\n", ["opening"]),
        ("# The pods are late. Nor are they many.\n", ["opening"]),
        ("# The pods are late.\n# Which is bad.\n", ["opening"]),
        ("x = 1  # so late\n", []),
        ("# These defaults match the chart. Is this so? What else?\n", []),
    ],
)
def test_sentence_that_opens_with_a_pronoun_is_reported(text: str, expected: list[str]) -> None:
    assert rules(text) == expected


@pytest.mark.parametrize(
    "text", ["said = 1\n", "def f(words: int) -> None: ...\n", "class Word: ...\n", "a.last_told = 1\n"]
)
def test_banned_identifier_is_reported_where_it_is_defined(text: str) -> None:
    assert rules(text) == ["name"]


def test_identifier_that_only_contains_a_banned_name_passes() -> None:
    assert rules("password = swords = 1\n") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# The pod is made anew.\n", ["banned"]),
        ("# The agent says no.\n", ["banned"]),
        ('# The log holds `says` and "told".\n', []),
        ('print("training goes on")\n', ["banned"]),
        ('print("the user said no")\n', []),
    ],
)
def test_banned_expression_is_reported_in_prose_and_messages(text: str, expected: list[str]) -> None:
    assert rules(text) == expected


def test_string_of_a_test_is_data() -> None:
    assert rules('x = "training goes on"\n', "tests/unit/test_x.py") == []


def test_trailing_comment_has_a_limit_that_leaves_directives_out() -> None:
    assert rules(f"x = 1  # {'long ' * style.MAX_TRAILING}\n") == []
    assert rules(f"x = 1  # {'long ' * (style.MAX_TRAILING + 1)}\n") == ["trailing"]
    assert rules(f"x = 1  # noqa: S101 # {'long ' * style.MAX_TRAILING}\n") == []


def test_length_of_test_names_and_files_is_limited() -> None:
    assert rules(f"def test_{'x' * style.MAX_TEST_NAME}() -> None: ...\n") == ["test-name"]
    assert rules("x = 1\n" * (style.MAX_FILE_LINES + 1)) == ["file-length"]


def test_command_reports_path_line_and_rule_and_fails(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    (tmp_path / "bad.py").write_text("x = 1\n# What it is.\n")
    (tmp_path / "good.py").write_text('"""A good file."""\n')
    command = [sys.executable, style.__file__]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("bad.py:2: opening: ")
    assert done.stdout.count("\n") == 1
    good = subprocess.run([*command, "good.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (good.returncode, good.stdout) == (0, "")
    table = subprocess.run([*command, "--count"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert table.returncode == 0
    assert table.stdout.splitlines()[-1].split()[0] == "all"
