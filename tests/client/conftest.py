"""`start`: a `dtj run` in a folder of its own, ended with all its processes when the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.support import LocalRun


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LocalRun]]:
    runs: list[LocalRun] = []

    def start(*flags: str, **options: Any) -> LocalRun:
        runs.append(LocalRun(options.pop("folder", tmp_path), *flags, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.end()
