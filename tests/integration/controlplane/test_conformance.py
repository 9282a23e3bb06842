"""Good, bad and generated specs: API server, `dtj run` and planner agree, and accepted jobs become steady.

DTJ_SPECS is the number of generated specs, and DTJ_SPECS_SEED their seed. A defect that is found
gets a row in tests/unit/api/specs_conformance.py.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from dtj_contract import names
from hack.cluster.controlplane import ControlPlane
from tests.integration.controlplane.conformance import Conformance, complete
from tests.integration.controlplane.history import History
from tests.integration.controlplane.kubelet import Kubelet
from tests.integration.controlplane.support import Agents, Objects, Operator, running, wait_until
from tests.lib.generated_specs import spec_of
from tests.unit.api.specs import BAD, GOOD

SPECS = int(os.environ.get("DTJ_SPECS", "300"))
SEED = int(os.environ.get("DTJ_SPECS_SEED", "0"))
CREATED = max(12, SPECS // 100)
"""Accepted specs that are really created."""
MOST_PODS = 4
QUIET_CHECKS = 20
"""Looks at unchanged objects, after which they are steady. Nothing but a deadline changes them by then."""
STEADY_TIMEOUT = 180.0
WAITS = ("ChildRefused", "AcceleratorUndecided", "InvalidSpec", "RuntimeNotFound", "RuntimeIncomplete")


def show(defects: list[str]) -> str:
    return f"{len(defects)} defects:\n" + "\n".join(defects[:30])


@pytest.mark.timeout(600)
def test_tables_of_good_and_bad_specs_hold_on_the_api_server(plane: ControlPlane, namespace: str) -> None:
    """Each refusal names a field and a cure; each accepted spec has a plan, or a condition that names a field."""
    check = Conformance(plane, namespace)
    for case, good in GOOD.items():
        check.judge(case, complete(good))
    assert len(check.verdicts.accepted) == len(GOOD), show(check.verdicts.defects)
    for case, (bad, _) in BAD.items():
        check.judge(case, complete(bad))
    assert check.verdicts.refused == len(BAD), [case for case, _ in check.verdicts.accepted[len(GOOD) :]]
    assert check.verdicts.defects == [], show(check.verdicts.defects)
    assert len(GOOD) + len(BAD) >= 150


@pytest.mark.timeout(3600)
def test_generated_specs_have_one_verdict_and_a_steady_status(
    plane: ControlPlane,
    namespace: str,
    start_operator: Callable[..., Operator],
    objects: Objects,
    kubelet: Kubelet,
    agents: Agents,
) -> None:
    """A defect is named SEED:NUMBER; tests/lib/generated_specs.py makes its spec again."""
    check = Conformance(plane, namespace)
    for number in range(SPECS):
        check.judge(f"{SEED}:{number}", spec_of(SEED, number))
    verdicts = check.verdicts
    assert verdicts.defects == [], show(verdicts.defects)
    assert min(len(verdicts.accepted), verdicts.refused) >= SPECS // 5, "the generator makes both kinds"
    assert verdicts.rejected_children >= SPECS // 50, "some are rejected by the server's validation of pods"
    jobs = [job for _, job in verdicts.accepted if is_small(job["spec"])]
    create(plane, objects, agents, random.Random(SEED).sample(jobs, min(CREATED, len(jobs))))
    with History(plane, namespace) as history:
        operator = start_operator().ready()
        wait_until_steady(objects)
    assert history.statuses.keys() == {job["metadata"]["name"] for job in objects.list(names.PLURAL)}
    assert history.flaps() == []
    assert operator.process.poll() is None
    assert "bug in the operator" not in operator.log.read_text()


def is_small(spec: Any) -> bool:
    pods = spec["replicas"] + spec.get("spares", 0)
    return pods <= MOST_PODS and spec.get("managedBy", names.CONTROLLER) == names.CONTROLLER


def create(plane: ControlPlane, objects: Objects, agents: Agents, jobs: list[Any]) -> None:
    """Creates the jobs, whose agents report that they run."""
    for number, job in enumerate(jobs):
        # A steady state is not a deleted job, or one that has failed for its deadline.
        spec = {key: value for key, value in job["spec"].items() if not key.endswith(("Seconds", "Finished"))}
        body = job | {"metadata": {"name": f"c-{number}", "namespace": objects.namespace}, "spec": spec}
        body.pop("status", None)
        stored = plane.request("POST", objects.path(names.PLURAL), body)
        agents.statuses[stored["metadata"]["uid"]] = running()


def wait_until_steady(objects: Objects) -> None:
    """Waits until every job has a status, and nothing of it changes in many looks."""
    seen: list[str] = []

    def steady() -> bool:
        statuses = [job.get("status") for job in objects.list(names.PLURAL)]
        states = [has_settled(status) for status in statuses]
        found = json.dumps([statuses, sorted(pod["metadata"]["uid"] for pod in objects.list("pods"))])
        if not all(states) or (seen and seen[-1] != found):
            seen.clear()
        seen.append(found)
        return all(states) and len(seen) >= QUIET_CHECKS

    wait_until("all jobs are steady", steady, timeout=STEADY_TIMEOUT, detail=objects.dump)


def has_settled(status: Any) -> bool:
    """Returns whether the job runs, is suspended, has failed, or waits for what only a person can change."""
    conditions = {c["type"]: c for c in (status or {}).get("conditions") or ()}
    done = any(conditions.get(kind, {}).get("status") == "True" for kind in ("Running", "Suspended", "Failed"))
    return done or conditions.get("Running", {}).get("reason") in WAITS


def test_history_that_flaps_is_found() -> None:
    """The check fails for a condition that goes to and fro."""
    history = History.__new__(History)
    flags = ("False", "True", "False", "True")
    history.statuses = {"j": [[{"type": "Running", "status": flag, "reason": "R"}] for flag in flags]}
    assert history.flaps() == ["j: Running False, True, False, True"]
    history.statuses = {"j": [[{"type": "Running", "status": flag, "reason": "R"}] for flag in ("False", "True")]}
    assert history.flaps() == []


def test_seed_and_number_make_the_same_spec() -> None:
    assert [spec_of(3, number) for number in range(20)] == [spec_of(3, number) for number in range(20)]
    different = {json.dumps(spec_of(3, number), sort_keys=True) for number in range(100)}
    assert len(different) >= 90
