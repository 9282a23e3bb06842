"""Runs the tests marked `last(n)` after all others, those with the largest `n` at the very end."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        mark = item.get_closest_marker("last")
        return mark.args[0] if mark else 0

    items.sort(key=place)
