"""`spec.engine`: ranks that meet at the servers of their engine, at fresh addresses in each attempt, without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.client.support import LocalRun, job_yaml

Start = Callable[..., LocalRun]
RANKS = Path(__file__).with_name("engine_ranks.py")


def servers(engine: str, environment: dict[str, str]) -> list[str]:
    if engine == "tensorflow":
        found: list[str] = json.loads(environment["TF_CONFIG"])["cluster"]["worker"]
        return found
    return [environment["JAX_COORDINATOR_ADDRESS"]]


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_ranks_meet_again_at_fresh_addresses_after_the_first_one_is_lost(
    engine: str, start: Start, tmp_path: Path
) -> None:
    met = tmp_path / "met"
    met.mkdir()
    job = yaml.safe_load(job_yaml(replicas=2, processes=2))
    job["spec"] |= {"engine": engine, "entrypoint": {"script": str(RANKS), "args": [engine, str(met)]}}
    run = start(job=yaml.safe_dump(job))
    code, job = run.wait()
    assert code == 0, run.lines()
    assert (job["status"]["attempt"], job["status"]["restarts"]["inPlace"]) == (2, 1)
    found = {path.stem: json.loads(path.read_text()) for path in met.glob("*.json")}
    assert sorted(found) == [f"{attempt}-{rank}" for attempt in (1, 2) for rank in range(4)]
    first, second = servers(engine, found["1-0"]), servers(engine, found["2-0"])
    assert len(first) == len(set(first)) == len(second) == {"jax": 1, "tensorflow": 4}[engine]
    assert not {address.rpartition(":")[2] for address in first} & {address.rpartition(":")[2] for address in second}
    assert all(servers(engine, environment) == second for name, environment in found.items() if name.startswith("2-"))
    logs = [path.read_text() for path in run.run_dir.glob("*.log")]
    assert len(logs) == 2
    assert not any("without a warm process" in log for log in logs)
    assert not [name for name in found["1-3"] if name.startswith(("TORCH", "MASTER_")) and name not in os.environ]
