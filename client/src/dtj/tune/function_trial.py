"""The worker of a trial whose objective is a Python function: calls it with the trial's parameters.

    python3 -m dtj.tune.function_trial --dtj-function FILE.py:NAME --dtj-space JSON --lr 0.01 …

Standard library only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FUNCTION, SPACE, METRIC, PATH = "--dtj-function", "--dtj-space", "--dtj-metric", "--dtj-path"
RUN_NAME = "__dtj_trial__"
"""Name of the script's module in a worker, as if it were imported: `if __name__ == "__main__"` is not entered."""


class Trial:
    """The trial that an objective computes the value of."""

    def __init__(self, params: Mapping[str, Any], metric: str, environ: Mapping[str, str]) -> None:
        self.params = dict(params)
        """Parameters by name."""
        self.rank = int(environ.get("RANK", "0"))
        self.world_size = int(environ.get("WORLD_SIZE", "1"))
        self.folder = Path(environ.get("DTJ_CHECKPOINT_DIR", "."))
        """Folder of the trial. The same after a restart, so an objective that saves there can continue."""
        origin = environ.get("TUNE_FROM")
        self.begins_at = self.folder.parent / origin if origin else None
        """With pbt, the folder of the trial that this one starts from, unless its own folder has a later state."""
        steps = environ.get("TUNE_STEPS")
        self.steps = int(steps) if steps else None
        """With pbt, the step to which the trial trains."""
        self._metric = metric
        self._socket = environ.get("DTJ_AGENT_SOCKET")
        self._attempt = int(environ.get("DTJ_ATTEMPT", "0"))
        self._step = 0

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def report(self, step: int, value: float) -> None:
        """Reports an intermediate value, by which the pruner may stop the trial. Ranks but 0 report nothing."""
        self._step = max(self._step, step)
        self._send(phase="training", step=step, metrics={self._metric: float(value)})

    def finish(self, value: float) -> None:
        """Reports the final value."""
        self._send(phase="done", step=self._step + 1, metrics={self._metric: float(value)})

    def _send(self, **fields: Any) -> None:
        if self._socket is None or self.rank != 0:
            return
        body = json.dumps({"rank": self.rank, "attempt": self._attempt, **fields}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(body, self._socket)


def load(reference: str) -> Callable[[Trial], float | None]:
    """Returns the function of `module:name` or `/path/of/script.py:name`."""
    module, _, name = reference.rpartition(":")
    if not module.endswith(".py"):
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]
    sys.path.insert(0, str(Path(module).parent))
    return runpy.run_path(module, run_name=RUN_NAME)[name]  # type: ignore[no-any-return]


def decode(space: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the parameters with the types that they have in the space."""
    found: dict[str, Any] = {}
    for name, parameter in space.items():
        given = texts[name]
        if parameter["type"] == "choice":
            found[name] = next(value for value in parameter["values"] if _text(value) == given)
        else:
            found[name] = int(given) if parameter["type"] == "int" else float(given)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the function once. Returns the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in (FUNCTION, SPACE, METRIC):
        parser.add_argument(flag, required=True)
    parser.add_argument(PATH, action="append", default=[])
    own, rest = parser.parse_known_args(arguments)
    flags = vars(own)
    sys.path[:0] = [path for path in flags["dtj_path"] if path not in sys.path]
    texts = {name.removeprefix("--"): value for name, value in zip(rest[::2], rest[1::2], strict=True)}
    trial = Trial(decode(json.loads(flags["dtj_space"]), texts), flags["dtj_metric"], os.environ)
    # An exception, so that `finally` and `with` of the function are left in order.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    value = load(flags["dtj_function"])(trial)
    if value is not None:
        if not math.isfinite(value):
            print(f"the objective returned {value}: the trial fails", file=sys.stderr)
            return 1
        trial.finish(value)
    return 0


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
