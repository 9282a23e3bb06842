"""`tune: true` finds faster settings by real steps, changes nothing else, and keeps its choice for a resumed run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dtj_trainer.config import TrainerConfig
from dtj_trainer.errors import ConfigError
from dtj_trainer.task import Task
from dtj_trainer.tuning import probe
from dtj_trainer.tuning.search import Field, Limits, Settings, candidates, search
from dtj_trainer.tuning.tune import Deadline, describe
from dtj_trainer.virtual import fit
from tests.unit.trainer.ranks import finished
from tests.unit.trainer.ranks_tuning import model, tuned

START = Settings(workers=0, prefetch=2, micro_batch_size=16, bucket_cap_mb=25.0)
LIMITS = Limits(parameter_mb=200.0, most_workers=8)


@pytest.mark.parametrize(
    ("field", "now", "limits", "values"),
    [
        ("micro_batch_size", START, LIMITS, [8, 4]),
        ("micro_batch_size", replace(START, micro_batch_size=1), LIMITS, []),
        ("micro_batch_size", replace(START, micro_batch_size=3), LIMITS, [1]),
        ("micro_batch_size", replace(START, micro_batch_size=None), LIMITS, []),
        ("bucket_cap_mb", START, LIMITS, [1, 5, 100]),
        ("bucket_cap_mb", START, replace(LIMITS, parameter_mb=3.0), [1]),
        ("bucket_cap_mb", replace(START, bucket_cap_mb=1.0), replace(LIMITS, parameter_mb=3.0), [5]),
        ("bucket_cap_mb", START, replace(LIMITS, parameter_mb=0.5), []),
        ("bucket_cap_mb", replace(START, bucket_cap_mb=None), LIMITS, []),
        ("workers", START, LIMITS, [1, 2, 4, 8]),
        ("workers", replace(START, workers=3), LIMITS, [6]),
        ("workers", START, replace(LIMITS, most_workers=2), [1, 2]),
        ("prefetch", START, LIMITS, []),
        ("prefetch", replace(START, workers=1), LIMITS, [4, 8]),
        ("prefetch", replace(START, workers=1, prefetch=4), LIMITS, [8]),
    ],
)
def test_values_to_try_are_few_and_useful(field: Field, now: Settings, limits: Limits, values: list[float]) -> None:
    assert [getattr(one, field) for one in candidates(field, now, limits)] == values


def seconds(settings: Settings) -> float:
    """Returns a step of a machine with a slow disk, where small buckets overlap and half the micro-batch is faster."""
    buckets = {1.0: 0.9, 5.0: 0.6}.get(settings.bucket_cap_mb or 0, 1.0)
    loading = {0: 0.5, 1: 0.2}.get(settings.workers, 0.0)
    return buckets + loading + (0.0 if settings.micro_batch_size == 8 else 0.3)


def test_search_finds_the_fastest_value_of_each_field() -> None:
    outcome = search(START, LIMITS, seconds, lambda: True)
    assert outcome.settings == Settings(workers=2, prefetch=2, micro_batch_size=8, bucket_cap_mb=5.0)
    assert (outcome.before, outcome.after, outcome.complete) == (1.8, 0.6, True)
    assert describe(START, outcome) == (
        "tune: data.workers 0 -> 2, micro_batch_size 16 -> 8, strategy.bucket_cap_mb 25.0 -> 5.0: "
        "600.0 ms a step instead of 1800.0 (3.00x)"
    )


def test_difference_within_the_noise_changes_nothing() -> None:
    outcome = search(START, LIMITS, lambda one: 1.0 if one == START else 0.96, lambda: True)
    assert outcome.settings == START
    assert describe(START, outcome) == "tune: nothing is faster than the config, 1000.0 ms a step"


def test_search_ends_with_its_time_and_keeps_the_best_so_far() -> None:
    left = iter([True, False])
    outcome = search(START, LIMITS, seconds, lambda: next(left))
    assert outcome.settings == replace(START, micro_batch_size=8)
    assert not outcome.complete
    assert describe(START, outcome).endswith("; 60 s did not suffice for every value")


def test_more_workers_are_not_tried_once_two_more_do_not_help() -> None:
    tried: list[int] = []

    def measure(settings: Settings) -> float:
        tried.append(settings.workers)
        return 1.0

    search(replace(START, micro_batch_size=None, bucket_cap_mb=None), LIMITS, measure, lambda: True)
    assert tried == [0, 1, 2]


def test_first_worker_that_does_not_help_is_not_the_last_one_tried() -> None:
    slow = search(START, LIMITS, lambda one: 0.002 + 0.08 / max(1, one.workers), lambda: True)
    assert slow.settings.workers == 8


def test_tuned_run_equals_the_same_settings_written_by_hand(tmp_path: Path) -> None:
    output = finished(2, tuned, tmp_path, tmp_path, str(tmp_path / "out.json"))
    found = json.loads((tmp_path / "out.json").read_text())
    saved = found["saved"]
    assert saved["settings"]["workers"] >= 1, "two workers wait for the disk at the same time"
    assert saved["tried"][0]["workers"] == 0
    assert found["losses"] == found["written"] == found["again"]
    assert found["seconds again"] < saved["tried"][0]["seconds"] * 100, "nothing is tried again"
    assert found["saved of fsdp"]["settings"]["bucket_cap_mb"] is None
    assert len(found["fsdp"]) == 3
    assert "tune: data.workers 0 -> " in output


class Stream:
    """A stream that ends with the run's last step."""

    def read(self, start: int) -> Iterator[torch.Tensor]:
        for number in range(start, 12):
            yield torch.full((8,), number / 12)


def test_stream_that_is_shorter_than_the_tries_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "TIMED_SECONDS", 0.05)
    task = Task(model=model(), data=Stream(), loss=lambda model, batch: model(batch).square().mean())
    (result,) = fit(task, TrainerConfig(steps=3, global_batch_size=4, tune=True), 1)
    assert result.step == 3


def test_no_try_begins_that_would_not_end_in_time() -> None:
    deadline = Deadline(60.0, began=100.0)
    assert deadline.has_time(now=100.0)
    deadline.took(35.0)
    assert deadline.has_time(now=124.9)
    assert not deadline.has_time(now=125.1)


def test_tuning_and_compilation_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="tune does not work with compile"):
        TrainerConfig(steps=1, tune=True, compile=True)
