"""`dtj run` takes every field of the API: it carries it out, or reports in one line that it is ignored."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.unit.client.support import LocalRun, job_yaml

SHORTHANDS = """\
  env: [{name: WHO, value: you}]
  envFrom: [{configMapRef: {name: settings}}]
  resources: {limits: {example.com/npu: 2}}
  processesFrom: example.com/npu
  nodeSelector: {gpu: a100}
  tolerations: [{operator: Exists}]
  priorityClassName: high
  imagePullSecrets: [{name: registry}]
  shmSize: 16Gi
  network: {hostNetwork: true, interface: ib0}
  queueName: team-a
  managedBy: kueue.x-k8s.io/multikueue
  template:
    spec:
      containers:
        - name: trainer
          command: [sh, -c, 'echo $RANK of $WORLD_SIZE, $WHO, ${NCCL_SOCKET_IFNAME:-any interface}']
"""
IGNORED = (
    "network is ignored: all ranks are on this machine",
    "shmSize is ignored: /dev/shm is that of this machine",
    "queueName is ignored: nothing is queued here",
    "managedBy is ignored: dtj run runs the job",
    "nodeSelector is ignored",
    "tolerations is ignored",
    "priorityClassName is ignored",
    "imagePullSecrets is ignored",
    "envFrom is ignored: export those variables before dtj run",
    "resource example.com/npu: 2 is not reserved",
)


def test_local_run_carries_out_or_names_every_shorthand(start: Callable[..., LocalRun]) -> None:
    kept = [
        line
        for line in job_yaml(replicas=1).splitlines()
        if not re.match(r"  (entrypoint|checkpoint|processesPerPod):", line)
    ]
    run = start("--logs", job="\n".join(kept) + "\n" + SHORTHANDS)
    code, _ = run.wait()
    lines = run.lines()
    assert code == 0, lines
    for rank in (0, 1):
        assert f"count-0 [rank {rank}] {rank} of 2, you, any interface" in lines
    for notice in IGNORED:
        assert lines.count(notice) == 1, lines


def test_local_run_keeps_the_claim_of_a_template_in_a_folder_of_its_name(start: Callable[..., LocalRun]) -> None:
    text = job_yaml(steps=3, replicas=1).replace("{claimName: shared}", "{claimTemplate: {size: 1Gi}}")
    run = start(job=text)
    code, found = run.wait()
    assert code == 0, run.lines()
    assert found["run"]["checkpoints"].endswith("/count-checkpoints/default/count")
