"""The pages in which forked workers count their optimizer steps (dtj_contract.step_page)."""

from __future__ import annotations

import os
import stat
from typing import Dict

from dtj_contract import step_page
from dtj_contract.step_page import StepCount

MAX_PAGES = 1024  # of a pod; more ranks than any pod has


class StepPages:
    """Holds one page for each rank of this pod in one attempt.

    A page outlives its worker, so the last step of a worker that was killed is known.
    """

    def __init__(self) -> None:
        self._pages: Dict[int, int] = {}

    def add(self, rank: int, page: int) -> None:
        """Takes over the descriptor `page`; a later page of the same rank replaces the earlier one."""
        # Reading from anything else could block, or fail.
        is_file = stat.S_ISREG(os.fstat(page).st_mode)
        if not is_file or (rank not in self._pages and len(self._pages) >= MAX_PAGES):
            os.close(page)
            return
        before = self._pages.get(rank)
        self._pages[rank] = page
        if before is not None:
            os.close(before)

    def read(self) -> Dict[int, StepCount]:
        """Returns the counts by rank, as of now; a rank without a step is absent."""
        counts = {}
        for rank, page in self._pages.items():
            try:
                count = step_page.parse(os.pread(page, step_page.SIZE, 0))
            except OSError:
                continue
            if count is not None:
                counts[rank] = count
        return counts

    def close(self) -> None:
        pages, self._pages = self._pages, {}
        for page in pages.values():
            os.close(page)

    def __bool__(self) -> bool:
        return bool(self._pages)
