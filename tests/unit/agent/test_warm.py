"""Workers that are forked from the warm process run as in an interpreter of their own, whatever becomes of it.

A small module stands in for torch, whose import would take longer than all of these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.warm_site import write_site

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_site(folder)
    return folder


def drive(scenario: str, site: Path | None, cwd: Path, more: dict[str, str] | None = None, **request: Any) -> Any:
    """Runs a scenario of warm_driver, with `more` variables. Returns what it found."""
    paths = [(more or {}).get("PYTHONPATH") or str(site or ""), str(ROOT)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **(more or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.agent.warm_driver", scenario],
        input=json.dumps(request), capture_output=True, text=True, timeout=300, cwd=cwd, env=environ,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])


# Each of these prints the same, and ends with the same code, whether it was forked or not.
SCRIPTS = {
    "main": """
import json, os, pickle, signal, sys, threading
class Local: pass
me = sys.modules["__main__"]
print(sorted(key for key in vars(me) if key != "key"), __name__, __file__, __spec__, __package__, __cached__, __doc__)
print(type(__loader__).__name__, __loader__.name, __builtins__)
print(sys.argv, sys.path, sys.orig_argv, sys.flags, os.getcwd(), os.umask(0))
print(pickle.loads(pickle.dumps(Local())).__class__ is Local, me.Local is Local)
print([name for name in sys.modules if name.startswith("dtj_agent")])
print(sorted((key, value) for key, value in os.environ.items()))
print([signal.getsignal(number) for number in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []))
print(os.getsid(0) == os.getpid(), sys.stdin.read(), threading.active_count(), len(os.listdir("/proc/self/task")))
print(sorted(os.listdir("/proc/self/fd"))[:-1], sys.stdout.isatty(), sys.stdout.line_buffering)
print(open("/proc/self/comm").read(), open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"))
""",
    "neighbour": "import beside; print(beside.__file__)",
    "raises": "def inner():\n    raise ValueError('boom')\ninner()",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('b') from error",
    "syntax": "def broken(:\n    pass",
    "hook": "import sys\nsys.excepthook = lambda *all: print('hooked', all[0])\nraise ValueError",
    "exit_7": "import sys; sys.exit(7)",
    "exit_text": "import sys; sys.exit('a reason')",
    "exit_none": "raise SystemExit",
    "atexit": "import atexit; atexit.register(print, 'at exit'); raise SystemExit(2)",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')",
    "signal_9": "import os; os.kill(os.getpid(), 9)",
    "signal_15": "import os, time; os.kill(os.getpid(), 15); time.sleep(60)",
    "handler": "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(4))\nos.kill(os.getpid(), 15)\n"
    "signal.pause()",
    "spawns": """
import multiprocessing
class Item:
    def __init__(self, value): self.value = value
def double(item): return Item(2 * item.value)
if __name__ == "__main__":
    import beside
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print([item.value for item in pool.map(double, [Item(1), Item(2)])], pool.map(beside.triple, [3]))
""",
    "forks": """
import os
pid = os.fork()
if pid == 0:
    print("child", os.environ["RANK"], flush=True)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
}
MODULE = """
from . import sibling
import inspect, sys
class Local: pass
print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], sibling.__name__)
print(inspect.getsource(sys.modules["__main__"].Local))
if "raise" in sys.argv:
    raise ValueError("in a module")
"""


def test_forked_script_runs_as_in_an_interpreter_of_its_own(site: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def triple(value): return 3 * value\n")
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    for name in ("pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/sibling.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "pkg/sub/train.py").write_text(MODULE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    commands = []
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(text)
        commands.append([sys.executable, "-u", f"{name}.py", "--flag", "a b"])
    (elsewhere / "link.py").symlink_to(tmp_path / "neighbour.py")
    commands.append([sys.executable, "-u", str(elsewhere / "link.py")])
    modules = [["pkg.sub.train", "x"], ["pkg.sub.train", "raise"], ["pkg"], ["nosuch"], ["pkg.nosuch"]]
    commands += [[sys.executable, "-u", "-m", *module] for module in modules]
    found = drive("both", site, tmp_path, commands=commands)
    assert not [line for line in found["logs"] if "without" in line], "no case may fall back to a plain start"
    for command, (forked, plain) in zip(commands, found["results"], strict=True):
        assert forked["0"][1].splitlines() == plain["0"][1].splitlines(), command
        assert forked == plain, command


LEFT_OPEN = """
import holder, sys
file = open("lines", "a")
def write():
    file.write("a line\\n")
write()
print(holder.main.file is file, holder.main.__name__, holder.main.__file__)
"exit" in sys.argv and sys.exit()
"""


@pytest.mark.parametrize("script", [["script.py"], ["script.py", "exit"], ["-m", "script"]])
def test_file_that_a_script_leaves_open_is_flushed_at_its_end(site: Path, tmp_path: Path, script: list[str]) -> None:
    """The namespace of the script is in a cycle with its function, which the interpreter's last collection finds."""
    (tmp_path / "holder.py").write_text("import __main__ as main")
    (tmp_path / "script.py").write_text(LEFT_OPEN)
    paths = os.pathsep.join([str(tmp_path), str(site)])
    command = [sys.executable, "-u", *script]
    found = drive("both", site, tmp_path, {"PYTHONPATH": paths}, commands=[command], modules=["holder"])
    forked, plain = found["results"][0]
    assert forked == plain
    assert forked["0"][1].startswith("True __main__ /"), found
    assert not [line for line in found["logs"] if "without" in line]
    assert (tmp_path / "lines").read_text() == "a line\n" * 2


def test_keyboard_interrupt_ends_a_forked_worker_by_the_signal(site: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)")
    found = drive("both", site, tmp_path, commands=[[sys.executable, "-u", "script.py"]])
    forked, plain = found["results"][0]
    assert forked["0"][0] == plain["0"][0]


def test_forked_ranks_draw_different_random_numbers(tmp_path: Path) -> None:
    """With the real torch, whose generator a fork copies; numpy's too."""
    (tmp_path / "script.py").write_text(
        "import random, torch, numpy, sys\n"
        "assert 'torch._dynamo' in sys.modules\n"
        "print(torch.rand(1).item(), numpy.random.rand(), random.random())\n"
    )
    found = drive("ranks", None, tmp_path, command=[sys.executable, "-u", "script.py"])
    assert any("is ready" in line for line in found["logs"])
    first, second = (found["result"][rank][1].split() for rank in "01")
    assert len(first) == 3, found
    assert not set(first) & set(second)


HELLO = "import os; print('hello', os.environ['RANK'])"


def hello(tmp_path: Path) -> list[str]:
    (tmp_path / "hello.py").write_text(HELLO)
    return [sys.executable, "-u", "hello.py"]


BOTH_WELL = {"0": [0, "hello 0"], "1": [0, "hello 1"]}


def test_module_that_cannot_be_forked_is_left_out(site: Path, tmp_path: Path) -> None:
    modules = ["warns", "starts_thread", "raises", "exits", "draws", "nosuch"]
    found = drive("ranks", site, tmp_path, command=hello(tmp_path), modules=modules)
    assert found["result"] == BOTH_WELL
    log = "\n".join(found["logs"])
    assert "starts_thread is not imported into it: it has started 1 threads" in log
    # Their parts stay imported, so the next process is another.
    assert "raises is not imported into it: raises when it is imported (RuntimeError: as asked)" in log
    assert "exits is not imported into it: raises when it is imported (SystemExit: 3)" in log
    assert "draws is not imported into it: it draws random numbers when it is imported" in log
    assert "no module nosuch (ModuleNotFoundError" in log
    assert "[warm] an import warns" in log
    assert "is ready" in log
    assert "without" not in log


def test_interpreter_without_torch_starts_workers_plainly(tmp_path: Path) -> None:
    found = drive("ranks", None, tmp_path, command=hello(tmp_path), options=["-u", "-S"])
    assert found["result"] == BOTH_WELL
    assert found["logs"] == ["workers are started without a warm process: its Python has no torch"]


@pytest.mark.parametrize("scenario", ["killed_while_forking", "dies_before_it_is_known"])
def test_start_survives(site: Path, tmp_path: Path, scenario: str) -> None:
    found = drive(scenario, site, tmp_path, command=hello(tmp_path))
    if scenario == "dies_before_it_is_known":
        # The workers are the agent's when they have reported: their ends are reported as any worker's.
        assert {rank: result[0] for rank, result in found["result"].items()} == {"0": -9, "1": -9}
    else:
        assert found["result"] == BOTH_WELL
        assert any("without the warm process" in line for line in found["logs"])


def test_attempt_waits_for_imports_and_can_stop_meanwhile(site: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.01)\n")
    go = tmp_path / "go"
    environ = {"GO": str(go), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(site)])}
    found = drive("still_importing", site, tmp_path, environ, command=hello(tmp_path), modules=["slow"], go=str(go))
    assert found["stopped"] == {}
    assert found["importing"]
    assert found["result"] == BOTH_WELL
    assert not any("without" in line for line in found["logs"]), found


def test_warm_process_that_always_dies_soon_is_given_up(site: Path, tmp_path: Path) -> None:
    found = drive("killed_again_and_again", site, tmp_path, command=hello(tmp_path))
    assert found["result"] == BOTH_WELL
    assert sum("is ready" in line for line in found["logs"]) == 5
    assert found["logs"][-1] == "workers are started without a warm process: it ended"


def test_warm_process_killed_while_idle_is_replaced(site: Path, tmp_path: Path) -> None:
    found = drive("killed_while_idle", site, tmp_path, command=hello(tmp_path))
    assert found["results"] == [BOTH_WELL, BOTH_WELL]
    assert found["other"]
    assert sum("without the warm process" in line for line in found["logs"]) == 1


def test_warm_process_that_does_not_answer_is_replaced(site: Path, tmp_path: Path) -> None:
    found = drive("silent_while_forking", site, tmp_path, command=hello(tmp_path))
    assert found["result"] == found["again"] == BOTH_WELL
    assert any("it forks no worker within" in line for line in found["logs"])


def test_warm_process_killed_while_stopping_holds_up_nothing(site: Path, tmp_path: Path) -> None:
    found = drive("killed_while_stopping", site, tmp_path, command=hello(tmp_path))
    assert found["stopped"] == {}
    assert found["result"] == BOTH_WELL


@pytest.mark.parametrize(
    ("damage", "ranks", "used"),
    [
        ("none", 2, 2),
        ("one killed", 2, 1),
        ("process between stopped", 2, 2),
        # The standbys have fallen to the agent, which may have killed them as orphans.
        ("process between killed", 2, None),
        ("warm process killed", 2, 0),
        ("none", 1, 0),
    ],
)
def test_next_attempt_takes_the_workers_that_were_forked_ahead(
    site: Path, tmp_path: Path, damage: str, ranks: int, used: int | None
) -> None:
    (tmp_path / "pid.py").write_text("import os, random\nprint(os.getpid(), random.random())\n")
    command = [sys.executable, "-u", "pid.py"]
    found = drive("standbys", site, tmp_path, command=command, damage=damage, ranks=ranks)
    first, second = found["results"]
    assert [code for code, _ in second.values()] == [0] * ranks
    printed = [text.split() for result in (first, second) for _, text in result.values()]
    assert len({number for _, number in printed}) == 2 + ranks
    taken = {int(text.split()[0]) for _, text in second.values()} & set(found["ahead"])
    assert used is None or len(taken) == used


def test_attempt_that_stops_before_the_byte_runs_no_script(site: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("open('ran', 'w').close()")
    assert drive("stopped_before_the_byte", site, tmp_path, command=[sys.executable, "-u", "script.py"]) == {}
    assert not (tmp_path / "ran").exists()


def test_environment_that_differs_at_import_starts_workers_plainly(site: Path, tmp_path: Path) -> None:
    found = drive("unequal_environment", site, tmp_path, command=hello(tmp_path))
    assert found["results"] == [BOTH_WELL, BOTH_WELL]
    plain = [line for line in found["logs"] if "without the warm process" in line]
    assert plain == [
        "workers are started without the warm process: OMP_NUM_THREADS differs from that of the warm process"
    ]


COLLECTOR = "import torch, sys, gc\nif sys.argv[1:]: import tunes\nprint(gc.get_threshold(), gc.isenabled())"


@pytest.mark.parametrize("torch_does", ["", "gc.set_threshold(500, 6, 7)", "gc.disable()"])
def test_forked_script_has_the_collector_that_its_imports_leave(tmp_path: Path, torch_does: str) -> None:
    own = tmp_path / "site"
    write_site(own)
    with (own / "torch/__init__.py").open("a") as file:
        file.write(f"import gc\n{torch_does}\n")
    (own / "tunes.py").write_text("import gc\na, b, c = gc.get_threshold()\ngc.set_threshold(10 * a, b, c + 1)\n")
    (tmp_path / "script.py").write_text(COLLECTOR)
    for modules in ([], ["tunes"]):
        command = [sys.executable, "-u", "script.py", *modules]
        found = drive("both", own, tmp_path, commands=[command], modules=modules)
        forked, plain = found["results"][0]
        assert forked == plain
        assert not [line for line in found["logs"] if "without" in line]
