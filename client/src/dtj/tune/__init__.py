"""Hyperparameter search whose trials are jobs: `dtj tune sweep.yaml`, and `tune(objective, space)` from Python.

from dtj.tune import Trial, tune

def objective(trial: Trial) -> float:
    for step in range(100):
        loss = ...
        trial.report(step, loss)
    return loss

if __name__ == "__main__":
    result = tune(objective, {"lr": {"type": "float", "min": 1e-4, "max": 0.1, "log": True}}, trials=20, parallel=4)
    print(result.best_params, result.best_value)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj.tune.function import Result, tune
    from dtj.tune.function_trial import Trial

__all__ = ["Result", "Trial", "tune"]


def __getattr__(name: str) -> Any:
    """Imports on demand, because the command line imports this package for its flags."""
    if name == "Trial":
        from dtj.tune.function_trial import Trial

        return Trial
    if name in ("Result", "tune"):
        from dtj.tune import function

        return getattr(function, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
