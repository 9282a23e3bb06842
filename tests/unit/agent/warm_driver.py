"""Runs workers with the agent's own supervisor and warm process, in a process whose children the supervisor may reap.

`python -m tests.unit.agent.warm_driver SCENARIO` reads JSON from standard input, and writes JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from dtj_agent.workers.supervisor import children
from tests.unit.agent.warm_pod import PATIENCE, Driver


def both(request: Any) -> Any:
    """Runs each command forked and plainly, and further ones only forked."""
    driver = Driver(request.get("modules", []))
    driver.ready()
    found = [[driver.run(command), driver.run(command, plain=True)] for command in request["commands"]]
    forked = [driver.run(command) for command in request.get("forked", [])]
    driver.close()
    return {"results": found, "forked": forked, "logs": driver.logs}


def ranks(request: Any) -> Any:
    """Runs one command on two forked ranks."""
    driver = Driver(request.get("modules", []), tuple(request.get("options", ["-u"])), request.get("folder", ""))
    driver.ready()
    result = driver.run(request["command"], 2)
    driver.close()
    return {"result": result, "logs": driver.logs}


def still_importing(request: Any) -> Any:
    """Stops one attempt while the warm process imports, and starts another, which waits for it."""
    driver = Driver(request["modules"])
    driver.warm.start()
    driver.begin(request["command"], 2)
    driver.stop()
    stopped = dict(driver.results)
    importing = driver.warm.is_importing
    Path(request["go"]).touch()
    result = driver.run(request["command"], 2)
    driver.close()
    return {"stopped": stopped, "importing": importing, "result": result, "logs": driver.logs}


def killed_again_and_again(request: Any) -> Any:
    from dtj_contract import names

    names.WARM_RETRY_SECONDS = 0.01
    driver = Driver([])
    while not driver.warm.is_off:
        driver.warm.start()
        driver.until(lambda: driver.warm.is_ready or driver.warm.is_off, "a warm process")
        if driver.warm.is_ready:
            os.kill(driver.warm.pid, signal.SIGKILL)
            driver.until(lambda: not driver.warm.is_ready, "the end to be noticed")
    result = driver.run(request["command"], 2)
    return {"result": result, "logs": driver.logs}


def killed_while_idle(request: Any) -> Any:
    driver = Driver([])
    driver.ready()
    first = driver.warm.pid
    os.kill(first, signal.SIGKILL)
    driver.until(lambda: not driver.warm.is_ready, "the end to be noticed")
    results = [driver.run(request["command"], 2)]
    driver.until(lambda: driver.warm.is_ready, "another warm process")
    results.append(driver.run(request["command"], 2))
    other = driver.warm.pid != first
    driver.close()
    return {"results": results, "logs": driver.logs, "other": other}


def _one_attempt(request: Any, ranks: int = 2) -> tuple[Driver, list[Any]]:
    """Runs an attempt in a pod that learns imports."""
    driver = Driver([], folder=request["folder"], engine=request.get("engine", "torch"))
    driver.ready()
    return driver, [driver.run(request["command"], ranks)]


def learned(request: Any) -> Any:
    """Runs two attempts, the second after the warm process has learned the imports of the first, or does not."""
    driver, results = _one_attempt(request)
    driver.until(lambda: _learnings(driver) or _refusals(driver), "the imports of the first attempt")
    results.append(driver.run(request["command"], 2))
    driver.close()
    return {"results": results, "logs": driver.logs, "imported": _learnings(driver)}


def forks_while_learning(request: Any) -> Any:
    """Runs an attempt while the warm process imports, and another afterwards."""
    driver = Driver([], folder=request["folder"])
    driver.ready()
    results = [driver.run(request["command"], 2), driver.run(request["command"], 2)]
    Path(request["go"]).touch()
    driver.until(lambda: _learnings(driver), "the imports of the first attempt")
    results.append(driver.run(request["command"], 2))
    driver.close()
    return {"results": results, "logs": driver.logs}


def successor_killed(request: Any) -> Any:
    """Kills the process that serves in place of the first one."""
    driver, results = _one_attempt(request, ranks=1)
    driver.until(lambda: _learnings(driver), "the imports of the first attempt")
    (serving,) = map(int, Path(f"/proc/{driver.warm.pid}/task/{driver.warm.pid}/children").read_text().split())
    os.kill(serving, signal.SIGKILL)
    driver.until(lambda: not driver.warm.is_ready, "the end to be noticed")
    driver.until(lambda: driver.warm.is_ready, "another warm process")
    results.append(driver.run(request["command"]))
    driver.close()
    return {"results": results, "logs": driver.logs}


def successor_stopped(request: Any) -> Any:
    """Stops the process that serves in place of the first one."""
    driver = Driver([], folder=request["folder"])
    driver.ready()
    first = driver.warm.pid
    results = [driver.run(request["command"])]
    driver.until(lambda: _learnings(driver), "the imports of the first attempt")
    (serving,) = map(int, Path(f"/proc/{driver.warm.pid}/task/{driver.warm.pid}/children").read_text().split())
    os.kill(serving, signal.SIGSTOP)
    results.append(driver.run(request["command"]))
    same = driver.warm.pid == first
    driver.close()
    return {"results": results, "logs": driver.logs, "same": same}


def reports_while_learning(request: Any) -> Any:
    """Runs an attempt that reports its imports while those of the first one are tried."""
    driver = Driver([], folder=request["folder"])
    driver.ready()
    results = [driver.run(request["command"]), driver.run(request["command"])]
    Path(request["go"]).touch()
    kept = Path(request["folder"], "learned.json")
    driver.until(lambda: kept.exists() and "later" in kept.read_text(), "the imports of both attempts")
    driver.close()
    return {"results": results, "logs": driver.logs}


def ahead(request: Any) -> Any:
    """Runs an attempt, waits until each rank's own imports are there, runs `between`, and a second attempt."""
    driver, results = _one_attempt(request)
    driver.until(lambda: any("ahead for each rank, in" in line for line in driver.logs), "the imports of each rank")
    if hidden := request.get("hidden"):
        Path(hidden).write_text("")
    results.append(driver.run(request["command"], request.get("ranks", 2), **request.get("variables", {})))
    driver.close()
    return {"results": results, "logs": driver.logs}


def ahead_killed(request: Any) -> Any:
    """Kills a standby that imports, once, and runs a second attempt when the imports of each rank are there."""
    driver, results = _one_attempt(request)
    driver.until(lambda: len(_marked(request["mark"])) == 2, "two standbys that import")
    os.kill(_marked(request["mark"])[0], signal.SIGKILL)
    Path(request["mark"], "go").touch()
    driver.until(lambda: any("ahead for each rank, in" in line for line in driver.logs), "the imports of each rank")
    results.append(driver.run(request["command"], 2))
    driver.close()
    return {"results": results, "logs": driver.logs}


def ahead_never_ready(request: Any) -> Any:
    """Runs a second attempt while the standbys of two ranks import, and ends the warm process while others do."""
    driver, results = _one_attempt(request)
    seen = []
    for _ in range(2):
        driver.until(lambda: len(_marked(request["mark"])) == 2, "two standbys that import")
        seen += _marked(request["mark"])
        if len(results) == 1:
            results.append(driver.run(request["command"], 2))
    os.kill(driver.warm.pid, signal.SIGKILL)
    driver.until(lambda: not set(seen) & set(_living()), "the end of all standbys")
    driver.close()
    return {"results": results, "logs": driver.logs}


def _marked(mark: str) -> list[int]:
    """Returns the living processes that have made a file of their pid in `mark`."""
    living = set(_living())
    return [int(path.name) for path in Path(mark).iterdir() if path.name.isdigit() and int(path.name) in living]


def _learnings(driver: Driver) -> list[str]:
    return [line.partition(", in")[0] for line in driver.logs if "for its next start" in line]


def _refusals(driver: Driver) -> list[str]:
    return [line for line in driver.logs if "native code may read" in line or "be found out" in line]


def killed_while_forking(request: Any) -> Any:
    driver = Driver([])
    driver.ready()
    os.kill(driver.warm.pid, signal.SIGSTOP)
    driver.begin(request["command"], 2)
    os.kill(driver.warm.pid, signal.SIGKILL)
    result = driver.finish()
    driver.close()
    return {"result": result, "logs": driver.logs}


def silent_while_forking(request: Any) -> Any:
    from dtj_contract import names

    names.WARM_FORK_SECONDS = 0.3
    driver = Driver([])
    driver.ready()
    os.kill(driver.warm.pid, signal.SIGSTOP)
    result = driver.run(request["command"], 2)
    names.WARM_FORK_SECONDS = 90.0
    driver.until(lambda: driver.warm.is_ready, "another warm process")
    again = driver.run(request["command"], 2)
    driver.close()
    return {"result": result, "again": again, "logs": driver.logs}


def killed_while_stopping(request: Any) -> Any:
    """Stops an attempt while its workers are being forked, and kills the warm process."""
    driver = Driver([])
    driver.ready()
    os.kill(driver.warm.pid, signal.SIGSTOP)
    driver.begin(request["command"], 2)
    driver.starter.cancel()
    driver.supervisor.stop(0.0)
    os.kill(driver.warm.pid, signal.SIGKILL)
    driver.until(lambda: driver.gone, "the workers to be gone")
    stopped = dict(driver.results)
    driver.until(lambda: driver.warm.is_ready, "another warm process")
    result = driver.run(request["command"], 2)
    driver.close()
    return {"stopped": stopped, "result": result, "logs": driver.logs}


def stopped_before_the_byte(request: Any) -> Any:
    """Gives workers up while they wait for the agent: they end by themselves, and none runs its script."""
    driver = Driver([])
    driver.ready()
    driver.begin(request["command"], 2)
    forked = _forked(driver, 2)
    driver.starter.cancel()
    driver.until(lambda: not set(forked) & set(children()), "the end of the workers")
    driver.stop()
    driver.close()
    return driver.results


def dies_before_it_is_known(request: Any) -> Any:
    """Kills workers that have reported their pid, before the agent has read that."""
    driver = Driver([])
    driver.ready()
    driver.begin(request["command"], 2)
    forked = _forked(driver, 2)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
    # The supervisor hears of the deaths before it reads the gates.
    while any(_state(pid) != "Z" for pid in forked):
        time.sleep(0.002)
    driver.supervisor.reap()
    result = driver.finish()
    driver.close()
    return {"result": result, "logs": driver.logs}


def unequal_environment(request: Any) -> Any:
    driver = Driver([])
    driver.ready()
    results = [driver.run(request["command"], 2, OMP_NUM_THREADS="7"), driver.run(request["command"], 2)]
    driver.close()
    return {"results": results, "logs": driver.logs}


def standbys(request: Any) -> Any:
    """Runs an attempt of two ranks, damages what is forked ahead of the next one, and runs that."""
    driver = Driver([])
    driver.ready()
    results = [driver.run(request["command"], 2)]
    driver.until(lambda: len(_ahead(driver)) == 3, "two standbys and the process between")
    between, *ahead = _ahead(driver)
    match request["damage"]:
        case "one killed":
            os.kill(ahead[0], signal.SIGKILL)
        case "process between stopped":
            os.kill(between, signal.SIGSTOP)
        case "process between killed":
            os.kill(between, signal.SIGKILL)
        case "warm process killed":
            os.kill(driver.warm.pid, signal.SIGKILL)
            driver.until(lambda: not driver.warm.is_ready, "the end to be noticed")
    results.append(driver.run(request["command"], request["ranks"]))
    driver.until(lambda: driver.warm.is_ready, "a warm process")
    driver.until(lambda: not {between, *ahead} & set(_living()), "the end of all that was forked ahead")
    driver.close()
    return {"results": results, "logs": driver.logs, "ahead": ahead}


def _ahead(driver: Driver) -> list[int]:
    """Returns the process between and its standbys, as far as they wait."""
    between = _children_of(driver.warm.pid)
    ahead = [pid for one in between for pid in _children_of(one)]
    return between + ahead if all(_state(pid) == "S" for pid in ahead) else []


def _children_of(pid: int) -> list[int]:
    try:
        return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def _living() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _state(int(path.name)) != "Z"]


def _forked(driver: Driver, count: int) -> list[int]:
    """Waits, without reading anything, until this many children wait for the byte."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = [pid for pid in children() if pid != driver.warm.pid and os.getsid(pid) == pid]
        if len(found) == count and all("unix_stream" in _waits_in(pid) or _state(pid) == "S" for pid in found):
            return found
        time.sleep(0.002)
    raise AssertionError(f"no {count} forked workers: {children()}")


def _waits_in(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


if __name__ == "__main__":
    scenario = globals()[sys.argv[1]]
    print(json.dumps(scenario(json.load(sys.stdin))))
