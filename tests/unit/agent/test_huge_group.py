"""4,096 members in virtual time; `python -m benchmarks.group` measures the same."""

from __future__ import annotations

from tests.lib.huge_group import HugeGroup

SIZE = 4096


def test_4096_members_that_fail_at_once_start_again_within_5_seconds() -> None:
    group = HugeGroup(SIZE)
    group.form()
    assert group.fail_all() <= 5.0
    assert sum(group.messages.values()) <= 7 * SIZE, group.messages
