"""The commands of README and docs exist, work in their order, and use files that exist."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dtj.main import parser

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOURCES = (".md", ".py", ".sh", ".yaml", ".txt", ".toml", "file", ".mk", ".tpl")
MISPLACED = re.compile(r"\binstall\s+(?:-\S+\s+)*[\"']?dtj(?![/\w.]*/)")


def commands(page: Path) -> list[str]:
    """Returns each shell command of a page, without comments, in reading order."""
    lines = "\n".join(FENCE.findall(page.read_text())).replace("\\\n", " ").splitlines()
    return [found for line in lines if (found := _uncommented(line))]


def _uncommented(line: str) -> str:
    tokens: list[str] = []
    for token in line.split(" "):
        if token.startswith("#"):
            break
        tokens.append(token)
    return " ".join(tokens).strip()


def commands_of_pages(*programs: str) -> list[tuple[str, str]]:
    """Returns (page, command) of every command line that starts one of these programs."""
    found = []
    for page in PAGES:
        for command in commands(page):
            tokens = command.split()
            while tokens and re.fullmatch(r"[A-Z_]+=\S*", tokens[0]):
                tokens = tokens[1:]
            if tokens and tokens[0] in programs:
                found.append((str(page.relative_to(ROOT)), " ".join(tokens)))
    return found


def targets() -> set[str]:
    makefiles = [ROOT / "Makefile", *ROOT.glob("hack/*.mk"), *ROOT.glob("hack/*/*.mk")]
    return {name for path in makefiles for name in re.findall(r"^([a-z][a-z-]*):", path.read_text(), re.MULTILINE)}


def claims(path: Path) -> set[str]:
    """Returns the claims that a file of Kubernetes objects creates."""
    objects = yaml.safe_load_all(path.read_text())
    return {one["metadata"]["name"] for one in objects if one and one.get("kind") == "PersistentVolumeClaim"}


def needs(path: Path) -> set[str]:
    """Returns the claims that the jobs of a file save to."""
    jobs = [one for one in yaml.safe_load_all(path.read_text()) if one and one.get("kind") == "DistributedTrainingJob"]
    found = {job["spec"].get("checkpoint", {}).get("volume", {}).get("claimName") for job in jobs}
    return {claim for claim in found if claim}


def test_docs_contain_commands() -> None:
    assert len(commands_of_pages("make")) >= 4
    assert len(commands_of_pages("dtj", ".venv/bin/dtj")) >= 6
    assert len(commands_of_pages("kubectl")) >= 6


@pytest.mark.parametrize(("page", "command"), commands_of_pages("make"))
def test_every_make_target_of_the_docs_exists(page: str, command: str) -> None:
    tokens = [token for token in command.split()[1:] if "=" not in token and not token.startswith("-")]
    assert set(tokens) <= targets(), page


@pytest.mark.parametrize(("page", "command"), commands_of_pages("dtj", ".venv/bin/dtj"))
def test_every_dtj_command_of_the_docs_parses(page: str, command: str) -> None:
    flags = parser().parse_args(shlex.split(command)[1:])
    for path in (getattr(flags, "file", None), getattr(flags, "filename", None)):
        assert path is None or (ROOT / path).exists(), page


@pytest.mark.parametrize(("page", "command"), commands_of_pages("kubectl", "helm", "sed"))
def test_every_file_of_a_cluster_command_exists(page: str, command: str) -> None:
    for token in re.findall(r"(?:^|[ =])((?:examples|charts|crds)/[\w./-]*)", command):
        assert (ROOT / token).exists(), page


def _before(page: Path) -> Iterator[tuple[str, list[str]]]:
    lines = commands(page)
    for at, command in enumerate(lines):
        yield command, lines[:at]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/tutorial.md"], ids=["README", "tutorial"])
def test_docs_use_a_cluster_after_its_exports_and_a_job_after_its_claim(page: Path) -> None:
    exports = 'eval "$(make -s cluster-env)"'
    assert any("cluster-up" in command for command in commands(page))
    for command, before in _before(page):
        if command.startswith(("kubectl", ".venv/bin/dtj wait", ".venv/bin/dtj logs")):
            assert exports in before, command
        for name in re.findall(r"kubectl apply -f (\S+\.yaml)", command):
            made = {
                claim for line in before for at in re.findall(r"apply -f (\S+)", line) for claim in claims(ROOT / at)
            }
            assert needs(ROOT / name) <= made, f"{command}: the claim is not created before"


def _sources() -> Iterator[Path]:
    """Yields the text files of this tree outside tests/.

    Walks the folders as hack/style.py does, because an unpacked source archive has no git.
    """
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("build", "tests")]
        yield from (Path(folder, name) for name in names if name.endswith(SOURCES))


def test_docs_never_name_a_package_of_strangers() -> None:
    pages = list(_sources())
    assert ROOT / "README.md" in pages
    wrong = []
    for path in pages:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "pip" in line and MISPLACED.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["pip install dtj", "pip install -U dtj", "pip3 install --upgrade 'dtj'", "pip install dtj-client"]
)
def test_search_for_strangers_packages_finds_them(line: str) -> None:
    assert MISPLACED.search(line)
    assert not MISPLACED.search("pip install ./trainer-image ./operator ./client")


def test_examples_on_one_claim_have_distinct_names() -> None:
    found: dict[tuple[str, str], str] = {}
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for job in (one for one in yaml.safe_load_all(path.read_text()) if one.get("kind") == "DistributedTrainingJob"):
            claim = job["spec"].get("checkpoint", {}).get("volume", {}).get("claimName", "")
            key = (job["metadata"]["name"], claim)
            assert key not in found, f"{path.name} and {found[key]}: the second would resume where the first has ended"
            found[key] = path.name
    assert found
