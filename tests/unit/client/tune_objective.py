"""A script that tunes a function of its own. Its trials save, so that one that is killed continues."""

import sys

from dtj.tune import Trial, tune


def parabola(trial: Trial) -> float:
    """Returns a value that is smallest at x = 2 with the right choices."""
    assert isinstance(trial["n"], int)
    assert trial["flag"] in (True, False)
    saved = trial.folder / "seen.txt"
    trial.folder.mkdir(parents=True, exist_ok=True)
    value = 0.0
    for step in range(1, 4):
        value = (trial["x"] - 2) ** 2 + trial["n"] + (0.0 if trial["flag"] else 100.0) + 1 / step
        trial.report(step, value)
        saved.write_text(f"{step}\n")
    return value


if __name__ == "__main__":
    found = tune(
        parabola,
        {
            "x": {"type": "float", "min": -10, "max": 10},
            "n": {"type": "int", "min": 1, "max": 3},
            "flag": {"type": "choice", "values": [True, False]},
        },
        trials=int(sys.argv[1]),
        parallel=2,
        algorithm={"name": "random", "seed": 1},
        folder=sys.argv[2],
    )
    assert found.best_params is not None
    print(f"best {found.best_trial} {found.best_value!r} {found.best_params!r}")
