"""The decision that a running attempt hangs. Pure.

| what is seen                                                | then                                  |
|-------------------------------------------------------------|---------------------------------------|
| a rank is stopped by a signal (state T)                     | hung after STOPPED_SECONDS            |
| no rank has made a step for longer than the limit           | hung, unless a rank announced a pause |
| no rank has made its first step for longer than a start may | hung, if none has shown a sign of     |
| take, by those of earlier attempts                          | life for START_SILENT_SECONDS         |
| no sign of life of any rank for `progress_deadline`         | hung, whatever a rank announced       |
| some ranks ended, the others idle for LEFT_BEHIND_SECONDS   | hung                                  |

The limit is the greatest of three times the usual step, twice the longest pause that the job has
shown, and a floor. A script that announces nothing may validate, compile or save without a word:
its floor is ten times that of a script that announces every pause.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from dtj_agent.group.vitals import RankVitals

STOPPED_SECONDS = 1.0
"""A debugger stops its process in state t, not T."""
FLOOR_SECONDS = 120.0
"""For a script that announces every pause, and is not at the disk."""
SILENT_FLOOR_SECONDS = 300.0
EARLY_STEPS = 10
"""Before them, the time that the first step took counts as a pause: it may be a report of many steps."""
EARLY_FACTOR = 4.0
"""Of the silent floor, in the first steps: compilers and graph captures work then."""
USUAL_FACTOR, LONGEST_FACTOR = 3.0, 2.0
LONGEST_LEARNT_SECONDS = 900.0
"""A hang may have been a pause: the next one must last twice as long, but not for ever."""
LEFT_BEHIND_SECONDS = 1800.0
"""Rank 0 may write a model for long, but not without processor time, network or disk."""
START_FACTOR = 3.0
"""Of the slowest start that the job has shown. A job that has shown none is not judged before its first step."""
START_SILENT_SECONDS = 60.0
"""A start that loads, downloads or compiles uses processor, network or disk meanwhile."""
HUNG_START_FACTOR = 2.0
"""A start that was taken for hung may have been slow: the next one may take that many times as long."""
LONGEST_START_LEARNT_SECONDS = 1800.0
"""But not longer: starts that hang for good must end."""
HINT_SECONDS = 1800.0
"""Without any sign of life in a phase that no limit bounds: the user gets a hint, and no rank is ended."""
ANNOUNCED = ("loading", "compiling", "validating", "saving", "done")
EXEMPT_AT_START = ("compiling", "validating", "saving", "done")
"""A trainer announces that it loads, and may hang right there: in the collectives of a restore."""

RESTART, REPORT, OFF = "Restart", "Report", "Off"
STOPPED, NO_STEP, NO_START, NO_LIFE = "stopped", "noStep", "noStart", "noLife"


class HangSettings(NamedTuple):
    """Times in seconds."""

    policy: str = RESTART
    """Restart, Report (an event, and training continues), or Off."""
    min_seconds: float = 0.0
    """Replaces the floors; 0: the defaults."""
    progress_deadline: float = 0.0
    """Without any sign of life; 0: none."""


class Hang(NamedTuple):
    """A hang. `ranks`: those that stand out already, before any stack is known."""

    kind: str
    ranks: List[int]
    seconds: float
    """Since the last sign."""
    usual: Optional[float] = None
    """The usual step."""
    start: float = 0.0
    """The slowest start of earlier attempts."""


class Earlier(NamedTuple):
    """The pauses and starts of earlier attempts. Times in seconds; 0: nothing."""

    longest: float = 0.0
    """The longest pause that nothing announced."""
    start: float = 0.0
    """From an attempt's begin to its first step, in the slowest of them."""
    spared: float = 0.0
    """A start may take so long, because a shorter one was taken for hung."""


NOTHING = Earlier()


def judge(
    settings: HangSettings, ranks: Dict[int, RankVitals], *, whole: bool, earlier: Earlier = NOTHING
) -> Optional[Hang]:
    """Returns the hang that the vitals of one attempt show; None if they show none.

    `whole`: every rank of the attempt is in `ranks`; the others have ended with 0.
    """
    if settings.policy == OFF or not ranks:
        return None
    found = stopped(settings, ranks)
    if found is None and whole:
        found = _without_step(settings, ranks, earlier.longest) or _without_start(settings, ranks, earlier)
    return found or _without_life(settings, ranks, whole)


def stopped(settings: HangSettings, ranks: Dict[int, RankVitals]) -> Optional[Hang]:
    """Returns the hang of the ranks that a signal has stopped, which is certain whatever else is known."""
    found = {rank: each.stopped for rank, each in ranks.items() if each.stopped >= STOPPED_SECONDS}
    if settings.policy == OFF or not found:
        return None
    return Hang(STOPPED, sorted(found), max(found.values()))


def limit(settings: HangSettings, ranks: Dict[int, RankVitals], longest: float = 0.0) -> float:
    """Returns how many seconds without a step are a hang of these ranks."""
    stepped = [each for each in ranks.values() if each.step is not None]
    usual = _median([each.usual for each in stepped if each.usual is not None]) or 0.0
    longest = max([longest, *(each.longest for each in stepped)])
    if _is_early(stepped):
        longest = max([longest, *(each.first for each in stepped)])
    return max(_floor(settings, ranks, stepped), USUAL_FACTOR * usual, LONGEST_FACTOR * longest)


def _floor(settings: HangSettings, ranks: Dict[int, RankVitals], stepped: List[RankVitals]) -> float:
    if settings.min_seconds:
        return settings.min_seconds
    if all(each.announces for each in stepped) and not any(each.disk for each in ranks.values()):
        return FLOOR_SECONDS
    return SILENT_FLOOR_SECONDS * (EARLY_FACTOR if _is_early(stepped) else 1.0)


def _is_early(stepped: List[RankVitals]) -> bool:
    return max((each.steps for each in stepped), default=0) < EARLY_STEPS


def _without_step(settings: HangSettings, ranks: Dict[int, RankVitals], longest: float) -> Optional[Hang]:
    stepped = [each for each in ranks.values() if each.step is not None]
    if not stepped or any(each.phase in ANNOUNCED for each in ranks.values()):
        return None
    seconds = min(each.age for each in stepped)
    if seconds < limit(settings, ranks, longest):
        return None
    furthest = max(each.step or 0 for each in stepped)
    behind = sorted(each.rank for each in stepped if (each.step or 0) < furthest)
    usual = _median([each.usual for each in stepped if each.usual is not None])
    return Hang(NO_STEP, behind, seconds, usual)


def start_limit(settings: HangSettings, ranks: Dict[int, RankVitals], earlier: Earlier) -> float:
    """Returns how many seconds without a first step are a hang of these ranks."""
    floor = SILENT_FLOOR_SECONDS if any(each.disk for each in ranks.values()) else FLOOR_SECONDS
    return max(settings.min_seconds or floor, START_FACTOR * earlier.start, earlier.spared)


def spared(settings: HangSettings, hang: Hang) -> float:
    """Returns how long the next start may take, after one that was ended."""
    is_learnt = hang.kind == NO_START and not settings.min_seconds
    return min(HUNG_START_FACTOR * hang.seconds, LONGEST_START_LEARNT_SECONDS) if is_learnt else 0.0


def _without_start(settings: HangSettings, ranks: Dict[int, RankVitals], earlier: Earlier) -> Optional[Hang]:
    seconds = min(each.age for each in ranks.values())
    if not _is_start_bounded(ranks, earlier) or _silence(ranks) < START_SILENT_SECONDS:
        return None
    is_hung = seconds >= start_limit(settings, ranks, earlier)
    return Hang(NO_START, [], seconds, start=earlier.start) if is_hung else None


def _is_start_bounded(ranks: Dict[int, RankVitals], earlier: Earlier) -> bool:
    waits = all(each.step is None and each.phase not in EXEMPT_AT_START for each in ranks.values())
    return waits and earlier.start > 0


def _silence(ranks: Dict[int, RankVitals]) -> float:
    """Returns the seconds since the last sign of life of any rank."""
    return min(min(each.age, each.idle) for each in ranks.values())


def _without_life(settings: HangSettings, ranks: Dict[int, RankVitals], whole: bool) -> Optional[Hang]:
    deadline = settings.progress_deadline or (0.0 if whole else LEFT_BEHIND_SECONDS)
    seconds = _silence(ranks)
    if not deadline or seconds < deadline:
        return None
    return Hang(NO_LIFE, [] if whole else sorted(ranks), seconds)


def unbounded_silence(
    settings: HangSettings, ranks: Dict[int, RankVitals], earlier: Earlier = NOTHING
) -> Optional[float]:
    """Returns for how long no rank has shown a sign of life, if that is long and no limit will end it; else None."""
    if not ranks or settings.policy == OFF or settings.progress_deadline:
        return None
    seconds = _silence(ranks)
    has_steps = any(each.step is not None for each in ranks.values())
    is_bounded = has_steps and all(each.phase not in ANNOUNCED for each in ranks.values())
    is_bounded = is_bounded or _is_start_bounded(ranks, earlier)
    return None if is_bounded or seconds < HINT_SECONDS else seconds


def _median(values: List[float]) -> Optional[float]:
    return sorted(values)[len(values) // 2] if values else None
