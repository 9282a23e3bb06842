"""A process that stops after its save does all that a script relies on at its end, but no tear-down of torch."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.errors import Stopped

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[3]
KEPT = """
import gzip, os, sys
class Torn:
    def __del__(self): os.write(2, b"torn down\\n")
torn = Torn()
text, packed = open(f"{sys.argv[1]}.txt", "w"), gzip.open(f"{sys.argv[1]}.gz", "wt")
text.write("a line")
packed.write("a packed line")
"""
SCRIPT = """
import atexit, os, signal, sys, threading, torch, kept
from dtj_trainer import State
how = sys.argv[1]
atexit.register(print, "first handler")
atexit.register(print, "second handler")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
model = torch.nn.Linear(1, 1)
sys.stdout.reconfigure(line_buffering=False, write_through=False)
try:
    for step in State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).steps(3):
        os.kill(os.getpid(), signal.SIGTERM)
except SystemExit as stopped:
    if how == "ends":
        sys.exit(0)
    if how == "raises":
        raise ValueError("another error")
    if how == "changes":
        stopped.code = 7
    raise
finally:
    print("finally")
"""
END = ["finally", "thread", "second handler", "first handler"]


def drive(scenario: str, cwd: Path, **request: Any) -> Any:
    """Runs a scenario of the agent's warm_driver. Returns what it found."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.agent.warm_driver", scenario],
        input=json.dumps(request), capture_output=True, text=True, timeout=300, cwd=cwd, env=environ,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_stopped_process_ends_without_the_tear_down_of_torch(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "kept.py").write_text(KEPT)
    ways = ["stops", "changes", "ends", "raises"]
    commands = [[sys.executable, "script.py", how] for how in ways]
    found = drive("both", tmp_path, commands=commands[:1], forked=commands)
    assert not [line for line in found["logs"] if "without" in line], "no case may fall back to a plain start"
    forked, plain = found["results"][0]
    for how, run, code, torn in [
        ("stops", plain, 143, []),
        ("stops", forked, 143, []),
        ("changes", found["forked"][1], 7, []),
        # Whatever else ends the process ends it as ever.
        ("ends", found["forked"][2], 0, ["torn down"]),
        ("raises", found["forked"][3], 1, ["torn down"]),
    ]:
        found_code, output = run["0"]
        lines = output.splitlines()
        assert found_code == code, output
        assert [line for line in lines if line in END] == END
        assert lines[lines.index(END[-1]) + 1 :] == torn
        assert (tmp_path / f"{how}.txt").read_text() == "a line"
        assert gzip.decompress((tmp_path / f"{how}.gz").read_bytes()) == b"a packed line"


def test_stop_that_is_caught_ends_no_process() -> None:
    """This interpreter continues, and ends with its own code."""
    script = "from dtj_trainer import Stopped\ntry: raise Stopped(3)\nexcept SystemExit as e: assert e.code == 143"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    with pytest.raises(SystemExit, match="stopped by SIGTERM after step 3") as caught:
        raise Stopped(3)
    assert caught.value.code == 143
