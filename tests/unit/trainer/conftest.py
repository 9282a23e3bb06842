"""What holds for every test of the trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_is_left_open() -> Iterator[None]:
    """A group that a test file opens in this process would be taken by the next file's for the script's own."""
    yield
    distributed = sys.modules.get("torch.distributed")  # a file that needs no torch does not import it for this
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
