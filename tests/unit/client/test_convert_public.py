"""Job files of others, as public_jobs/SOURCES.md lists them: each is converted, or refused for the reason in the list.

The files are not ours to keep here. `DTJ_PUBLIC_JOBS` names a folder with OWNER+NAME/PATH for each row.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from dtj.convert import appwrapper
from dtj.convert.documents import Options, convert, objects, runtimes
from dtj.convert.fields import Draft
from dtj.errors import InputError
from dtj_core import api
from tests.unit.client.converted import IMAGE, RUNTIME, lost, lost_lines

SOURCES = Path(__file__).parent / "public_jobs" / "SOURCES.md"
FOLDER = Path(os.environ.get("DTJ_PUBLIC_JOBS") or Path(__file__).parents[3] / "build" / "public_jobs")
KINDS = ("PyTorchJob", "TrainJob")
LICENCES = {"Apache-2.0", "BSD-3-Clause", "CC-BY-SA-4.0", "MIT-0", "MIT", "none"}


class Row(NamedTuple):
    """A file, and what becomes of it."""

    repository: str
    path: str
    commit: str
    licence: str
    outcome: str

    @property
    def file(self) -> Path:
        """Place of the file on this machine."""
        return FOLDER / self.repository.replace("/", "+") / self.path


def rows() -> list[Row]:
    """Returns the rows of the list."""
    lines = [line for line in SOURCES.read_text().splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip().strip("`") for cell in line.strip("|").split(" | "))) for line in lines]


def is_yaml(name: str) -> bool:
    """Returns whether a file holds Kubernetes objects: `job.yaml`, or `job.yaml-template`."""
    return Path(name).suffix.startswith((".yaml", ".yml"))


def outcome(text: str, name: str) -> tuple[str, list[Draft]]:
    """Returns what becomes of a file in one line, and its jobs."""
    try:
        image = None if is_yaml(name) else IMAGE
        drafts = convert(text, name, Options(image=image, runtimes=runtimes(RUNTIME)))
    except InputError as error:
        return f"refused: {error}", []
    specs = [api.validate(draft.job).spec for draft in drafts]
    return ", ".join(f"converted: {spec.replicas} x {spec.processes}" for spec in specs), drafts


def test_list_has_40_files_of_8_repositories() -> None:
    found = rows()
    assert len({row.file for row in found}) == len(found) >= 40
    assert len({row.repository for row in found}) >= 8
    assert {row.licence for row in found} <= LICENCES
    assert all(re.fullmatch("[0-9a-f]{40}", row.commit) for row in found)
    assert all(row.outcome.startswith(("converted: ", "refused: ")) for row in found)


def kept() -> list[Row]:
    """Returns the files that are on this machine: none, unless somebody has fetched them."""
    return [row for row in rows() if row.file.is_file()] if FOLDER.is_dir() else []


def test_public_files_are_converted_whole_or_refused() -> None:
    """Checks the files that are there, and demands all of them where `DTJ_PUBLIC_JOBS` is set."""
    for row in kept():
        check(row)
    if os.environ.get("DTJ_PUBLIC_JOBS"):
        assert len(kept()) == len(rows())


def check(row: Row) -> None:
    """Fails if the file has another outcome than the list, or a field that goes unmentioned."""
    text = row.file.read_text()
    found, drafts = outcome(text, row.file.name)
    assert found.startswith(row.outcome), row.path
    if is_yaml(row.path):
        inside = appwrapper.unwrapped(objects(text))[0] if drafts else []
        jobs = [one for one in inside if one["kind"] in KINDS]
        assert [lost(job, draft) for job, draft in zip(jobs, drafts, strict=True)] == [[] for _ in drafts], row.path
    else:
        assert [lost_lines(text, draft) for draft in drafts] == [[] for _ in drafts], row.path
