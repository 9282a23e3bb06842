"""Packages that read a rank's variables or start threads are imported ahead in the process that becomes the rank."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj_agent import engines
from dtj_agent.warm import learned, standby
from dtj_agent.warm.rank_variables import RankVariables
from tests.unit.agent.test_warm import drive
from tests.unit.agent.warm_site import STEP, write_site

READS = "import os; rank, os.environ['SET_BY_READS'] = os.environ['RANK'], '1'; os.environ.pop('TAKEN', None)\n"
THREADS = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
SCRIPT = f"""
import os, sys
there = [name in sys.modules for name in ("reads", "threads")]
import reads, threads
tasks = [int(task) for task in os.listdir("/proc/self/task")]
policies = {{os.sched_getscheduler(task) for task in tasks}}
print(there, reads.rank, os.environ["SET_BY_READS"], os.environ.get("TAKEN"), len(tasks), policies, end=" ")
print(open("/proc/self/oom_score_adj").read().strip() == open(f"/proc/{{os.getppid()}}/oom_score_adj").read().strip())
{STEP}"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib" / "site-packages"
    write_site(folder, counted=True)
    (folder / "reads.py").write_text(READS)
    (folder / "threads.py").write_text(THREADS)
    return folder


def run(scenario: str, site: Path, tmp_path: Path, text: str = SCRIPT, **request: Any) -> Any:
    work, state = tmp_path / "work", tmp_path / "state"
    for folder in (work, state):
        folder.mkdir(exist_ok=True)
    (work / "script.py").write_text(text)
    environ = {"PYTHONPATH": str(site), "TAKEN": "1", "MARK": str(tmp_path / "mark")}
    command = ["python3", "-u", "script.py"]
    return drive(scenario, site, work, environ, command=command, folder=str(state), mark=environ["MARK"], **request)


def variables(engine: str = "torch") -> RankVariables:
    warm = engines.load(engine).warm
    assert warm is not None
    return RankVariables(warm)


def kept(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "state" / learned.LEARNED_FILE).read_text())


def says(there: bool, rank: int) -> list[object]:
    return [0, f"{[there, there]} {rank} 1 None 2 {{0}} True"]


def test_each_rank_finds_what_only_its_own_process_can_import(site: Path, tmp_path: Path) -> None:
    found = run("ahead", site, tmp_path)
    first, second = found["results"]
    assert first == {"0": says(False, 0), "1": says(False, 1)}
    assert second == {"0": says(True, 0), "1": says(True, 1)}
    assert kept(tmp_path)["byRank"] == ["reads", "threads"]
    log = "\n".join(found["logs"])
    assert "no module threads (it has started 1 threads); it is imported ahead for each rank" in log
    assert "2 modules that the script imported are imported ahead for each rank, in " in log


@pytest.mark.parametrize(("ranks", "more"), [(1, {}), (2, {"WORLD_SIZE": "8"})])
def test_group_of_another_size_imports_by_itself(site: Path, tmp_path: Path, ranks: int, more: dict[str, str]) -> None:
    second = run("ahead", site, tmp_path, ranks=ranks, variables=more)["results"][1]
    assert second == {str(rank): says(False, rank) for rank in range(ranks)}


def test_next_attempt_of_the_same_group_uses_its_imports(site: Path, tmp_path: Path) -> None:
    more = {"MASTER_PORT": "29501", "DTJ_ATTEMPT": "2", "TORCHELASTIC_RESTART_COUNT": "1"}
    second = run("ahead", site, tmp_path, variables=more)["results"][1]
    assert second == {"0": says(True, 0), "1": says(True, 1)}


BAD = {
    "peeks": (
        "import os; os.environ['RANK']\n"
        "if any(k.startswith('TORCHELASTIC_RESTART') for k in os.environ): os.environ['TORCHELASTIC_RESTART_COUNT']",
        "it reads TORCHELASTIC_RESTART_COUNT when",
    ),
    "port": ("import os; os.environ['RANK'], os.environ.get('MASTER_PORT')", "it reads MASTER_PORT when"),
    "seeds": ("import os, random; os.environ['RANK']; random.seed(1)", "it configures logging, signals or"),
    "ends": (
        "import __main__, os, threads; 'RANK' in os.environ and (hasattr(__main__, 'here') or os._exit(3))",
        "its",
    ),
    "raises": ("import __main__, os, threads; 'RANK' in os.environ and __main__.here", "raises when it is imported"),
    "binds": ("import os, socket; os.environ['RANK']; kept = socket.socket()", "it has opened a socket"),
}


@pytest.mark.parametrize("some", [slice(3), slice(3, None)])
def test_package_that_no_process_can_import_ahead_is_left_to_the_script(
    site: Path, tmp_path: Path, some: slice
) -> None:
    tried = dict(list(BAD.items())[some])
    for name, (text, _) in tried.items():
        (site / f"{name}.py").write_text(text + "\n")
    # The script's own imports of them succeed.
    found = run("ahead", site, tmp_path, f"here = True\nimport {', '.join(tried)}\n{SCRIPT}")
    assert [result["1"][0] for result in found["results"]] == [0, 0]
    assert found["results"][1]["1"][1].startswith("[True, True] 1 1 None")
    left = kept(tmp_path)
    assert left["byRank"] == ["reads", "threads"]
    for name, (_, why) in tried.items():
        assert left["leftOut"][name].startswith(why or "its import ended the process"), name


SHARED = {
    "lock": "import multiprocessing; kept = multiprocessing.get_context('fork').Lock()",
    "folder": "import tempfile; kept = tempfile.TemporaryDirectory()",
    "pipe": "import os; kept = os.pipe()",
    "draws": "import random; kept = random.random()",
}


def test_what_forks_would_share_is_imported_by_each_rank(site: Path, tmp_path: Path) -> None:
    for name, text in SHARED.items():
        (site / f"{name}.py").write_text(text + "\n")
    found = run("ahead", site, tmp_path, f"import {', '.join(SHARED)}\n{SCRIPT}")
    assert found["results"][1] == {"0": says(True, 0), "1": says(True, 1)}
    assert set(kept(tmp_path)["byRank"]) == {"reads", "threads", *SHARED}


@pytest.mark.parametrize(
    ("first", "then", "ahead"),
    [
        ("", "", True),
        ("", "import random; random.seed(7)", True),
        ("import random; random.seed(7)", "", False),
        ("from random import seed; seed(7)", "", False),
        ("import random; random.setstate(random.Random(7).getstate())", "", False),
        ("import random; random.Random(7).random(); random.random()", "", True),
    ],
)
def test_package_that_draws_is_imported_ahead_unless_the_script_seeds_before(
    site: Path, tmp_path: Path, first: str, then: str, ahead: bool
) -> None:
    (site / "draws.py").write_text("import random; kept = random.random()\n")
    script = f"import sys\nthere = 'draws' in sys.modules\n{first}\nimport draws\n{then}\nprint(there, draws.kept)\n"
    found = run("ahead", site, tmp_path, script + SCRIPT)
    drawn = [found["results"][attempt][rank][1].split()[:2] for attempt in (0, 1) for rank in "01"]
    assert [there for there, _ in drawn] == ["False", "False", str(ahead), str(ahead)]
    assert len({number for _, number in drawn}) == (4 if ahead else 1), "as in interpreters of their own"


def test_copy_of_all_variables_reads_none(site: Path, tmp_path: Path) -> None:
    (site / "reads.py").write_text(READS + "kept = dict(os.environ), os.environ.copy(), {**os.environ}\n")
    second = run("ahead", site, tmp_path)["results"][1]
    assert second == {"0": says(True, 0), "1": says(True, 1)}


def test_package_whose_import_was_killed_once_gets_another_try(site: Path, tmp_path: Path) -> None:
    (site / "reads.py").write_text(
        READS + "import __main__, pathlib, time\n"
        "mark = pathlib.Path(os.environ['MARK'])\n"
        "if not hasattr(__main__, 'here'):\n"
        "    (mark / str(os.getpid())).touch()\n"
        "    while not (mark / 'go').exists(): time.sleep(0.01)\n"
    )
    (tmp_path / "mark").mkdir()
    second = run("ahead_killed", site, tmp_path, "here = True\n" + SCRIPT)["results"][1]
    assert second == {"0": says(True, 0), "1": says(True, 1)}
    assert kept(tmp_path)["byRank"] == ["reads", "threads"]


def test_attempt_waits_for_no_import_and_no_standby_outlives(site: Path, tmp_path: Path) -> None:
    (site / "reads.py").write_text(
        READS + "import __main__, pathlib, time\n"
        "if not hasattr(__main__, 'here'):\n"
        "    pathlib.Path(os.environ['MARK'], str(os.getpid())).touch(); time.sleep(600)\n"
    )
    (tmp_path / "mark").mkdir()
    found = run("ahead_never_ready", site, tmp_path, "here = True\n" + SCRIPT)
    for result in found["results"]:
        assert result == {"0": says(False, 0), "1": says(False, 1)}
    assert not any("without" in line for line in found["logs"]), found["logs"]


def test_file_that_hides_a_module_imported_ahead_is_used(site: Path, tmp_path: Path) -> None:
    text = SCRIPT.replace("print(there", "print(threads.__file__, there")
    found = run("ahead", site, tmp_path, text, hidden=str(tmp_path / "work" / "threads.py"))
    assert str(tmp_path / "work" / "threads.py") in found["results"][1]["0"][1]
    assert any("without the warm process" in line for line in found["logs"]), found["logs"]


def test_standby_whose_report_nobody_has_read_ends_in_silence() -> None:
    text = (
        "from dtj_agent.warm_needs import WarmNeeds\n"
        "from dtj_agent.warm import rank_variables, standby\n"
        "variables = rank_variables.RankVariables(WarmNeeds())\n"
        "for _ in range(20):\n"
        "    found = standby.begin([{}, {}], None, variables, lambda: None)\n"
        "    assert isinstance(found, standby.Standbys)\n"
        "    found.end()\n"
    )
    # The end of the pipe is the end of all forks.
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_standby_that_has_not_reported_is_forked_instead() -> None:
    """Its process may not exist yet: the order would be lost with the process between."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    pairs[0][1].send(b'{"done": 0, "seconds": 0}\n')
    leash, other = socket.socketpair()
    between = subprocess.Popen(["sleep", "60"])
    waiting = standby.Standbys(between.pid, leash, [pair[0] for pair in pairs], [], variables())
    with other, open("/dev/null") as null:
        assert waiting.start([b"{}", b"{}"], [null.fileno()] * 4) == [1]
    for _, theirs in pairs:
        theirs.close()


@pytest.mark.parametrize(
    ("engine", "name", "rank", "attempt"),
    [
        ("torch", "LOCAL_RANK", True, False),
        ("torch", "MASTER_PORT", True, True),
        ("torch", "TORCHELASTIC_RESTART_COUNT", True, True),
        ("torch", "TORCHELASTIC_RUN_ID", True, False),
        ("torch", "HOROVOD_RANK", False, False),
        ("torch", "HOME", False, False),
        ("horovod", "HOROVOD_RANK", True, False),
        ("deepspeed", "CROSS_RANK", True, False),
        ("jax", "JAX_PROCESS_ID", True, False),
        ("jax", "JAX_COORDINATOR_ADDRESS", True, True),
        ("jax", "MASTER_PORT", False, False),
    ],
)
def test_variable_differs_between(engine: str, name: str, rank: bool, attempt: bool) -> None:
    found = variables(engine)
    assert (found.is_per_rank(name), found.is_per_attempt(name)) == (rank, attempt)
