"""Every whole job on a page of docs/ and terraform/ is one that the operator accepts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from dtj_core import api

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "terraform").rglob("*.md"))]
Object = dict[str, Any]


def jobs(page: Path) -> list[Object]:
    """Returns the jobs of a page that have a whole spec; a fragment has no metadata."""
    texts = [text for _, text in BLOCK.findall(page.read_text())]
    found = [document for text in texts for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    return [each for each in found if each.get("kind") == "DistributedTrainingJob" and "metadata" in each]


WITH_JOBS = [page for page in PAGES if jobs(page)]


@pytest.mark.parametrize("page", WITH_JOBS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_job_of_a_page_is_accepted(page: Path) -> None:
    for job in jobs(page):
        api.validate(job)


def test_readme_has_eight_lines_for_every_engine() -> None:
    page = ROOT / "README.md"
    blocks = {yaml.safe_load(text)["spec"].get("engine"): text for _, text in BLOCK.findall(page.read_text())}
    engines = set(
        get_args(api.DistributedTrainingJob.model_fields["spec"].annotation.model_fields["engine"].annotation)
    )
    assert blocks.keys() - {None} == engines - {"torch"}
    assert all(len(text.splitlines()) == 8 for engine, text in blocks.items() if engine)


def test_pages_of_networks_and_clouds_have_jobs() -> None:
    assert len(jobs(ROOT / "docs/network.md")) == 4
    assert len(jobs(ROOT / "docs/clouds.md")) == 1
