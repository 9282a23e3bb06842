"""The packages of the page that draws the dashboard: pinned, from any registry, under licenses that allow the use."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.integration.chart.kit import ROOT

PAGE = ROOT / "tests/e2e/dashboard_page"
LICENSES = re.compile(r"MIT|Apache-2\.0|BSD-[23]-Clause|ISC|0BSD|OFL-1\.1|Unlicense|CC0-1\.0|BlueOak-1\.0\.0|Zlib")
# The field is missing: the first two have an Unlicense file; Slate needs the third, and nothing of ours ships it.
WITHOUT_FIELD = {"fast-shallow-equal", "react-universal-interface", "get-document"}


@pytest.fixture(scope="module")
def packages() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PAGE / "package-lock.json").read_text())["packages"]
    return found


def test_every_direct_package_is_pinned_and_in_the_lock(packages: dict[str, Any]) -> None:
    wanted = json.loads((PAGE / "package.json").read_text())["dependencies"]
    assert wanted == {name: packages[f"node_modules/{name}"]["version"] for name in wanted}


def test_the_lock_names_no_registry(packages: dict[str, Any]) -> None:
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []


def test_no_package_has_a_license_that_forbids_its_use_here(packages: dict[str, Any]) -> None:
    licenses = {
        name.removeprefix("node_modules/"): package.get("license") for name, package in packages.items() if name
    }
    assert {name for name, text in licenses.items() if text is None} == WITHOUT_FIELD
    assert {name: text for name, text in licenses.items() if text and not _may_be_used(text)} == {}


def _may_be_used(text: str) -> bool:
    """Returns whether one of the offered licenses may be used, with all that come with it."""
    return any(all(map(LICENSES.fullmatch, each.split(" AND "))) for each in text.strip("()").split(" OR "))
