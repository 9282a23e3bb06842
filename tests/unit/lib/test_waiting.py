"""A wait returns what it waited for, or fails with what it saw last."""

from __future__ import annotations

import asyncio

import pytest

from tests.lib.waiting import wait_until, wait_until_async


def test_wait_until_returns_the_first_truthy_value() -> None:
    values = iter([0, None, "", "there", "later"])
    assert wait_until("a value", lambda: next(values), every=0) == "there"


def test_wait_until_fails_with_its_text_last_value_and_detail() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not within 0 s: the pod; last: \[\].*the log"):
        wait_until("the pod", list, timeout=0, every=0, detail=lambda: "the log")


def test_wait_until_retries_only_the_exceptions_that_it_was_given() -> None:
    answers = iter([ConnectionRefusedError("not yet"), "there"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_until("an answer", call, every=0, retry=(OSError,)) == "there"
    answers = iter([ValueError("a defect")])
    with pytest.raises(ValueError, match="a defect"):
        wait_until("an answer", call, every=0, retry=(OSError,))
    answers = iter([OSError("no route")])
    with pytest.raises(AssertionError, match="last: OSError"):
        wait_until("an answer", call, timeout=-1, retry=(OSError,))


def test_wait_until_async_lets_the_event_loop_run() -> None:
    async def main() -> str:
        done: list[str] = []
        asyncio.get_running_loop().call_later(0.01, done.append, "done")
        return (await wait_until_async("the call", lambda: done))[0]

    assert asyncio.run(main()) == "done"


def test_wait_until_async_fails_with_its_text_and_last_value() -> None:
    with pytest.raises(AssertionError, match="not within 0 s: the pod; last: None"):
        asyncio.run(wait_until_async("the pod", lambda: None, timeout=0, every=0))
