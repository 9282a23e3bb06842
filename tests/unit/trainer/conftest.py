"""Fixtures of every test of the trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_is_left_open() -> Iterator[None]:
    """Closes a group that a test file opened here: the next file's tests would take it for theirs."""
    yield
    distributed = sys.modules.get("torch.distributed")  # a file that needs no torch does not import it for this
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
