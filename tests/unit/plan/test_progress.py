"""Step, percentage, expected end and goodput."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_core.plan import progress
from dtj_core.plan.agent_report import report_from_status
from dtj_core.plan.times import rfc3339
from tests.unit.plan.objects import NOW, UID, agent

Object = dict[str, Any]


def merged(status: Object, now: float = NOW, **fields: Any) -> Object:
    report = report_from_status(agent(**fields), UID)
    assert report is not None
    return progress.merge(status, report, now)


def at(step: int, seconds: float, total: int | None = 1000) -> Object:
    return {"step": step, "totalSteps": total, "time": NOW + seconds}


def test_percentage_and_eta_follow_from_the_speed_since_the_last_write() -> None:
    status = merged({}, progress=at(100, 0))
    assert status["progress"]["percent"] == 10.0
    assert "eta" not in status["progress"]
    status = merged(status, progress=at(400, 30))
    assert status["progress"]["stepsPerSecond"] == 10.0
    assert status["progress"]["eta"] == rfc3339(NOW + 30 + 60)


def test_old_speed_stands_after_a_restart_until_there_is_a_new_one() -> None:
    status = merged(merged({}, progress=at(100, 0)), progress=at(400, 30))
    status = merged(status, progress=at(350, 35))
    assert (status["progress"]["step"], status["progress"]["stepsPerSecond"]) == (350, 10.0)
    assert status["progress"]["eta"] == rfc3339(NOW + 35 + 65)


@pytest.mark.parametrize(
    ("total", "percent"),
    [(None, None), (0, None), (-5, None), (50, 100.0)],
    ids=["unknown", "zero", "negative", "less than done"],
)
def test_percentage_is_between_0_and_100_or_missing(total: int | None, percent: float | None) -> None:
    assert merged({}, progress=at(100, 0, total))["progress"].get("percent") == percent


def test_eta_beyond_ten_years_is_left_out() -> None:
    status = merged(merged({}, progress=at(0, 0, 10**15)), progress=at(1, 100, 10**15))
    assert "eta" not in status["progress"]


def test_attempt_with_no_steps_left_keeps_the_last_loss() -> None:
    status = merged({}, progress=at(1000, 0) | {"loss": 0.5, "metrics": {"accuracy": 0.9}})
    status = merged(status, progress=at(1000, 60) | {"metrics": {}})
    assert (status["progress"]["loss"], status["progress"]["metrics"]) == (0.5, {"accuracy": 0.9})
    status = merged(status, progress=at(100, 90))
    assert "loss" not in status["progress"], "an earlier step has another loss"


def test_checkpoint_step_never_decreases() -> None:
    status = merged({}, checkpoint={"step": 100, "path": "/c/step-00000100", "time": NOW})
    assert status["checkpoint"] == {"step": 100, "path": "/c/step-00000100", "time": rfc3339(NOW)}
    assert merged(status, checkpoint={"step": 50, "path": "/c/step-00000050"}) == status
    assert merged(status, checkpoint=None) == status


def test_goodput_is_the_productive_share_of_the_active_time() -> None:
    status = {"startTime": rfc3339(NOW), "productiveSeconds": 60.0, "activeSeconds": 20.0}
    assert progress.with_goodput(status, NOW + 80)["goodput"] == 0.6


def test_goodput_of_a_script_without_reports_is_unknown() -> None:
    status = {"startTime": rfc3339(NOW), "productiveSeconds": 0.0}
    assert "goodput" not in progress.with_goodput(status, NOW + 80)
    assert progress.with_goodput({**status, "progress": {"step": 3}}, NOW + 80)["goodput"] == 0.0
    assert progress.with_goodput({**status, "checkpoint": {"step": 3}}, NOW + 80)["goodput"] == 0.0


@pytest.mark.parametrize("now", [NOW, NOW - 50], ids=["at the start", "with a clock that was set back"])
def test_goodput_of_no_time_is_unknown(now: float) -> None:
    status = {"startTime": rfc3339(NOW), "productiveSeconds": 60.0}
    assert progress.with_goodput(status, now) == status


def counted(steps: int, seconds: float = 0.0) -> Object:
    """Returns the progress of a script that reports nothing."""
    return {"step": None, "totalSteps": None, "loss": None, "optimizerSteps": steps, "time": NOW + seconds}


def test_counted_steps_are_shown_with_their_source() -> None:
    status = merged({}, progress=counted(61))
    assert status["progress"] == {"step": 61, "stepSource": "Optimizer", "time": rfc3339(NOW)}
    status = merged(status, progress=counted(91, 10))
    assert (status["progress"]["step"], status["progress"]["stepsPerSecond"]) == (91, 3.0)
    assert "optimizerSteps" not in status["progress"]


def test_reported_step_has_precedence_over_counted_ones() -> None:
    status = merged({}, progress={**at(130, 0), "optimizerSteps": 30})
    assert (status["progress"]["step"], status["progress"]["stepSource"]) == (130, "Script")


def test_no_speed_follows_from_two_kinds_of_steps() -> None:
    status = merged(merged({}, progress=counted(10)), progress=at(1000, 10))
    assert "stepsPerSecond" not in status["progress"]


def test_script_without_any_step_has_unknown_steps() -> None:
    assert "progress" not in merged({}, progress=None, stepsUnknown=False)
    status = merged({}, progress=None, stepsUnknown=True)
    assert status["progress"] == {"stepSource": "Unknown"}
    assert merged(status, progress=counted(5))["progress"]["stepSource"] == "Optimizer"
    assert merged({"progress": at(5, 0)}, progress=None, stepsUnknown=True)["progress"] == at(5, 0)


def test_goodput_of_counted_steps_is_known() -> None:
    status = {"startTime": rfc3339(NOW), "productiveSeconds": 60.0}
    assert merged(status, NOW + 80, progress=counted(5), productiveSeconds=60.0)["goodput"] > 0


def test_stragglers_are_those_of_the_last_report() -> None:
    slow = {"rank": 3, "pod": "digits-1", "node": "w2", "ratio": 1.62}
    status = merged({}, stragglers=[{**slow, "more": 1}, "x"])
    assert status["stragglers"] == [slow]
    assert "stragglers" not in merged(status)
    follower = {"ordinal": 1, "leader": {"ordinal": 0, "pod": "digits-0", "epoch": 1}}
    assert merged(status, **follower)["stragglers"] == [slow], "a follower does not know them"


def test_estimates_of_a_script_are_shown_until_a_speed_is_known() -> None:
    estimate = {"percent": 40, "remainingSeconds": 90.0}
    status = merged({}, progress={"time": NOW, "optimizerSteps": 12, **estimate})["progress"]
    assert (status["percent"], status["eta"], status["step"]) == (40, rfc3339(NOW + 90), 12)
    assert "remainingSeconds" not in status
    first = merged({}, progress=at(100, 0) | estimate)
    assert (first["progress"]["percent"], first["progress"]["eta"]) == (10.0, rfc3339(NOW + 90))
    later = merged(first, progress=at(400, 30) | estimate)
    assert (later["progress"]["percent"], later["progress"]["eta"]) == (40.0, rfc3339(NOW + 30 + 60))


def test_script_that_has_ended_its_training_is_at_100_percent() -> None:
    """Its last report may be some steps old, and it may have stopped early."""
    status = merged({}, progress=at(990, 0) | {"percent": 100, "remainingSeconds": 0})["progress"]
    assert (status["percent"], status["step"]) == (100, 990)
    assert "eta" not in status
