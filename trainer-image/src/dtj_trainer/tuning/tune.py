"""Finds the fastest loader, micro-batch and bucket for `tune: true`, and keeps them for the attempts that follow."""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dtj_trainer import strategies
from dtj_trainer.checkpoint import rng
from dtj_trainer.config import TrainerConfig
from dtj_trainer.data.loader import LoaderConfig, StreamOrder
from dtj_trainer.data.order import DataOrder
from dtj_trainer.distributed.process_group import Group
from dtj_trainer.strategies import StrategyConfig
from dtj_trainer.task import Loss, Task
from dtj_trainer.tuning.probe import Probe, with_buckets
from dtj_trainer.tuning.search import Limits, Outcome, Settings, search

log = logging.getLogger(__name__)
SEARCH_SECONDS = 60.0
"""In which a try must end, as far as the longest one before shows. The first one, as configured, ends when it ends."""
FILE = "tuned.json"
"""In the checkpoint folder. A new attempt reads it: other buckets would add up gradients in another order, so that the
last bits of a resumed run would differ."""


class Deadline:
    """Decides whether one more try ends in time."""

    def __init__(self, seconds: float, *, began: float) -> None:
        self._end, self._longest = began + seconds, 0.0

    def took(self, seconds: float) -> None:
        """Notes the time of a try."""
        self._longest = max(self._longest, seconds)

    def has_time(self, *, now: float) -> bool:
        return now + self._longest <= self._end


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The parts of the config that were tuned."""

    strategy: StrategyConfig
    data: LoaderConfig
    micro_batch_size: int | None
    """As it was given to `tune`."""


def tune(
    task: Task,
    loss: Loss,
    config: TrainerConfig,
    *,
    strategy: StrategyConfig,
    micro_batch_size: int | None,
    group: Group,
    order: DataOrder | StreamOrder,
    folder: Path | None,
) -> Tuned:
    """Returns the fastest settings: those of `folder` where they are for the same run, else those of a search.

    A collective. The search takes real steps on copies of the model, and leaves random numbers and data as they were.

    Args:
        task: The run's task, before the strategy wraps its model.
        loss: The task's loss, checked.
        config: The run's config.
        strategy: The strategy's config, in which `auto` is decided.
        micro_batch_size: The size that was found to fit for `micro_batch_size: auto`; other sizes are the user's.
        group: All ranks of the run.
        order: The order of the samples, at its beginning.
        folder: The checkpoint folder, if there is one.
    """
    tunes_size = config.micro_batch_size == "auto" and micro_batch_size is not None
    buckets: float | None = None
    if isinstance(strategy, (strategies.DdpConfig, strategies.DdpScratchConfig)):
        buckets = strategy.bucket_cap_mb if group.world_size > 1 and config.communication.is_plain else None
    start = Settings(
        workers=config.data.workers,
        prefetch=config.data.prefetch,
        micro_batch_size=micro_batch_size if tunes_size else None,
        bucket_cap_mb=buckets,
    )
    settings = read(folder, _run(task, config, strategy, group), group) if folder else None
    if settings is None:
        settings = _search(task, loss, config, strategy=strategy, start=start, group=group, order=order, folder=folder)
    strategy = with_buckets(strategy, settings)
    data = replace(config.data, workers=settings.workers, prefetch=settings.prefetch)
    size = micro_batch_size
    if tunes_size and settings.micro_batch_size is not None and micro_batch_size is not None:
        size = min(settings.micro_batch_size, micro_batch_size)  # an earlier attempt may have had more memory
    return Tuned(strategy=strategy, data=data, micro_batch_size=size)


def _search(
    task: Task,
    loss: Loss,
    config: TrainerConfig,
    *,
    strategy: StrategyConfig,
    start: Settings,
    group: Group,
    order: DataOrder | StreamOrder,
    folder: Path | None,
) -> Settings:
    cores = len(os.sched_getaffinity(0)) // group.local_world_size
    limits = Limits(
        parameter_mb=strategies.tensor_bytes(task.model) / 2**20,
        most_workers=max(4, 2 * cores),  # a worker that waits for a disk needs no core
    )
    random_state, began = rng.capture(), time.monotonic()
    first = replace(order, global_batch_size=max(order.global_batch_size, group.world_size))
    probe = Probe(task=task, loss=loss, config=config, strategy=strategy, group=group, order=first)

    deadline = Deadline(SEARCH_SECONDS, began=began)

    def has_time() -> bool:
        return bool(group.from_first(deadline.has_time(now=time.monotonic())))

    def measure(settings: Settings) -> float:
        before = time.monotonic()
        seconds = probe.seconds(settings)
        deadline.took(time.monotonic() - before)
        return seconds

    with warnings.catch_warnings():
        # A loader warns of more workers than cores: whether they pay is what is tried.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        outcome = search(start, limits, measure, has_time)
    rng.restore(random_state)
    if group.rank == 0:
        log.info("%s (%.1f s of tries)", describe(start, outcome), time.monotonic() - began)
        if folder is not None:
            _write(folder, _run(task, config, strategy, group), outcome)
    return outcome.settings


def describe(start: Settings, outcome: Outcome) -> str:
    """Returns what was changed and what it gained."""
    names = {"workers": "data.workers", "prefetch": "data.prefetch", "bucket_cap_mb": "strategy.bucket_cap_mb"}
    old, new = asdict(start), asdict(outcome.settings)
    changed = [f"{names.get(name, name)} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]]
    rest = "" if outcome.complete else f"; {SEARCH_SECONDS:g} s did not suffice for every value"
    if not changed:
        return f"tune: nothing is faster than the config, {1000 * outcome.before:.1f} ms a step{rest}"
    times = f"{1000 * outcome.after:.1f} ms a step instead of {1000 * outcome.before:.1f}"
    return f"tune: {', '.join(changed)}: {times} ({outcome.before / outcome.after:.2f}x){rest}"


def _run(task: Task, config: TrainerConfig, strategy: StrategyConfig, group: Group) -> dict[str, Any]:
    """Returns what a choice is for. A run that differs in it searches again."""
    return {
        "world_size": group.world_size,
        "device": group.device.type,
        "global_batch_size": config.global_batch_size,
        "micro_batch_size": config.micro_batch_size,
        "workers": config.data.workers,
        "prefetch": config.data.prefetch,
        "strategy": strategies.name_of(strategy),
        "bucket_cap_mb": getattr(strategy, "bucket_cap_mb", None),
        "parameter_bytes": strategies.tensor_bytes(task.model),
    }


def read(folder: Path, run: Mapping[str, Any], group: Group) -> Settings | None:
    """Returns the settings that an earlier attempt of this run has found, as rank 0 reads them; a collective."""
    found: Settings | None = None
    if group.rank == 0:
        try:
            saved = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if saved["run"] == dict(run):
                found = Settings(**saved["settings"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("tune: %s is not usable (%s): trying again", folder / FILE, error)
    settings: Settings | None = group.from_first(found)
    return settings


def _write(folder: Path, run: Mapping[str, Any], outcome: Outcome) -> None:
    tried = [{**asdict(settings), "seconds": seconds} for settings, seconds in outcome.tried]
    text = json.dumps({"run": run, "settings": asdict(outcome.settings), "tried": tried}, indent=1)
    aside = folder / f".{FILE}.incomplete"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(folder / FILE)
    except OSError as error:
        log.warning("tune: can't write %s (%s): the next attempt tries again", folder / FILE, error)
