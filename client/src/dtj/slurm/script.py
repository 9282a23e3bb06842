"""Writes the sbatch script of a job. Pure."""

from __future__ import annotations

import math
import re
import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

from dtj import yaml_text
from dtj.errors import InputError
from dtj.slurm import allocation
from dtj_contract import names
from dtj_core.api import DistributedTrainingJob
from dtj_core.plan.model import Object

# For the save before a time limit. Slurm may send its signal up to a minute late.
GRACE_SECONDS = 100
MARGIN_SECONDS = 20
END = "END_OF_JOB"
_SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def script(job: Object, model: DistributedTrainingJob, *, python: str, volumes: Path) -> str:
    """Returns the script of a job that has been checked.

    `python`: the interpreter of dtj and of the training on each node. `volumes`: a folder that all nodes share.
    """
    grace = _grace(job)
    text = _text_of(job, grace)
    if END in text.splitlines():
        raise InputError(f"the job has a line {END}, which ends it in the script: write that line otherwise")
    saves = model.spec.checkpoint is not None and model.spec.checkpoint.volume is not None
    options = "\n".join(f"#SBATCH {line}" for line in _options(model, grace, saves=saves))
    values = {
        "OPTIONS": options,
        "JOB": text.rstrip(),
        "PYTHON": shlex.quote(python),
        "VOLUMES": shlex.quote(str(volumes)),
        "IMAGE": model.spec.image or model.spec.trainer.get("image") or "IMAGE",
        "SURVIVE": " --no-kill" if _survives_nodes(model) else "",
        "SAVES": "yes" if saves else "no",
        "TERMINATED": str(names.EXIT_TERMINATED),
        "ENV_JOB": allocation.ENV_JOB,
        "ENV_NODES": allocation.ENV_NODES,
        "ENV_KEY": allocation.ENV_KEY,
        "ENV_VOLUMES": allocation.ENV_VOLUMES,
        "ENV_CONTAINER": allocation.ENV_CONTAINER,
        "ENV_TRACKER": allocation.ENV_TRACKER,
    }
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], SCRIPT)


def _text_of(job: Object, grace: int) -> str:
    """Returns the job as YAML, with the grace period that the script's signal leaves it."""
    template = job["spec"].get("template") or {}
    pod = {"terminationGracePeriodSeconds": grace, **(template.get("spec") or {})}
    return yaml_text.dump({**job, "spec": {**job["spec"], "template": {**template, "spec": pod}}})


def _grace(job: Object) -> int:
    given = ((job["spec"].get("template") or {}).get("spec") or {}).get("terminationGracePeriodSeconds")
    return GRACE_SECONDS if given is None else int(given)


def _survives_nodes(model: DistributedTrainingJob) -> bool:
    """Returns whether the group can train without a node that it had."""
    return model.spec.spares > 0 or model.spec.elastic is not None


def _options(model: DistributedTrainingJob, grace: int, *, saves: bool) -> list[str]:
    spec = model.spec
    most = spec.replicas + spec.spares
    least = spec.elastic.min_replicas if spec.elastic else most
    found = [f"--job-name={model.metadata.name}", f"--nodes={least}-{most}" if least < most else f"--nodes={most}"]
    found.append("--ntasks-per-node=1")
    asked = spec.trainer.get("resources") or {}
    both: dict[str, Any] = {**(asked.get("requests") or {}), **(asked.get("limits") or {})}
    if "cpu" in both:
        found.append(f"--cpus-per-task={max(1, math.ceil(amount(both['cpu'], 'cpu')))}")
    if "memory" in both:
        found.append(f"--mem={max(1, math.ceil(amount(both['memory'], 'memory') / 2**20))}M")
    if spec.gpus:
        found.append(f"--gpus-per-node={spec.gpus}")
    if spec.active_deadline_seconds is not None:
        found.append(f"--time={math.ceil(spec.active_deadline_seconds / 60)}")
    found.append(f"--signal=B:USR1@{grace + MARGIN_SECONDS}")
    found += ["--requeue"] if saves else ["--no-requeue"]
    found += ["--no-kill"] if _survives_nodes(model) else []
    found += ["--hold"] if spec.suspend else []
    return [*found, "--output=%x-%j.out", "--open-mode=append"]


def amount(value: Any, name: str) -> Decimal:
    """Returns a quantity of Kubernetes as a number. Raises InputError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|Ki|Mi|Gi|Ti|k|M|G|T|)", str(value))
    if not match:
        raise InputError(f"resource {name}: write a quantity such as 2, 500m or 16Gi, not {value!r}")
    return Decimal(match[1]) / 1000 if match[2] == "m" else Decimal(match[1]) * _SIZES[match[2]]


SCRIPT = r"""#!/bin/bash
# Written by `dtj submit --slurm`. Options of sbatch take the place of these: --partition, --account, --time, …
@OPTIONS@

# The Python of the training on each node, with dtj in it.
PYTHON=@PYTHON@
# A folder that all nodes share, with a folder for each claim of the job.
VOLUMES=@VOLUMES@
# Starts each pod in a container instead, with the Python of its image:
# export @ENV_CONTAINER@="apptainer exec --nv --bind $VOLUMES --bind ${TMPDIR:-/tmp} docker://@IMAGE@"

export @ENV_JOB@ @ENV_NODES@ @ENV_KEY@ @ENV_TRACKER@ @ENV_VOLUMES@="$VOLUMES"
@ENV_JOB@=$(cat <<'END_OF_JOB'
@JOB@
END_OF_JOB
)
@ENV_NODES@=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ' ')
@ENV_TRACKER@=$(scontrol show config | sed -n 's/^ProctrackType *= *//p')

# Slurm sends USR1 before the time limit: the pods save, and the job continues in the next allocation.
time_is_up=no
trap 'time_is_up=yes; stop_pods' USR1
# Slurm sends TERM to the pods, too, or to this script alone (sbatch --signal=TERM@120).
term=no
trap 'term=yes' TERM
stop_pods() { kill -0 "$PODS_PID" 2>/dev/null && echo stop >&"${PODS[1]}"; }
must_end() { [ "$time_is_up" = yes ] || [ "$term" != no ]; }

mkdir -p "$VOLUMES" || exit 2
marker=$VOLUMES/.dtj-slurm-$SLURM_JOB_ID
: >"$marker" || exit 2
trap 'rm -f "$marker"' EXIT

wait_for() {
    local code
    while :; do
        wait "$1"
        code=$?
        kill -0 "$1" 2>/dev/null || return "$code" # a trap ends wait, too
        [ "$term" = yes ] || continue
        # Pods that have got the TERM save by now, and a second one would end that.
        term=passed
        sleep 5 &
        wait $!
        stop_pods
    done
}

# All pods are started again, if one is lost with all of its processes. Agents restart what fails inside of them.
code=@TERMINATED@
for try in 1 2 3 4 5; do
    @ENV_KEY@=$("$PYTHON" -c 'import secrets; print(secrets.token_hex(32))') || exit 2
    must_end && break
    exec 3>&1
    coproc PODS {
        exec srun --label --kill-on-bad-exit=1@SURVIVE@ --wait=0 --cpu-bind=none \
            ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} \
            "$PYTHON" -m dtj.slurm.pod >&3 2>&3
    }
    wait_for "$PODS_PID"
    code=$?
    if [ "$code" = 0 ]; then
        code=$(cat "$marker")
        code=${code:-@TERMINATED@} # no outcome: the pods were stopped
        break
    fi
    [ "$code" = 2 ] || must_end && break
    echo "[slurm] the pods have ended with $code: starting them again" >&2
    sleep 10 & # an agent whose pod was killed ends by itself in 3 s
    wait_for $!
done

# Slurm would not queue a preempted job again that ends by itself.
is_preempted() { scontrol show job "$SLURM_JOB_ID" | grep -q ' PreemptTime=[0-9]'; }
if [ @SAVES@ = yes ] && [ "$code" -gt 2 ] && { [ "$time_is_up" = yes ] || is_preempted; }; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
