"""A script that trains a population: each trial counts on from the number that its folder, or the one before, has."""

import sys
from pathlib import Path

from dtj.tune import Trial, tune

SIZE, STEPS = 2, 5


def climb(trial: Trial) -> float:
    """Returns how far the sum of all rates up to here is from a target that only the whole training reaches."""
    own = trial.folder / "sum.txt"
    found = [path for path in (own, *_of(trial.begins_at)) if path.exists()]
    step, total = map(float, found[0].read_text().split()) if found else (0.0, 0.0)
    trial.folder.mkdir(parents=True, exist_ok=True)
    (trial.folder / "began.txt").write_text(f"{step:g}\n")
    assert trial.steps is not None
    for number in range(int(step) + 1, trial.steps + 1):
        total += trial["rate"]
        trial.report(number, abs(3 * STEPS - total))
        own.write_text(f"{number} {total!r}\n")
    return abs(3 * STEPS - total)


def _of(folder: Path | None) -> list[Path]:
    return [] if folder is None else [folder / "sum.txt"]


if __name__ == "__main__":
    best = tune(
        climb,
        {"rate": {"type": "float", "min": 0.1, "max": 1}},
        trials=3 * SIZE,
        parallel=SIZE,
        algorithm={"name": "pbt", "seed": 3, "population": SIZE, "stepsPerGeneration": STEPS},
        folder=sys.argv[1],
    )
    print(f"best {best.best_trial} {best.best_value!r}")
