"""Jobs that `dtj convert` has made, and their pods, are accepted by a real API server in a dry run of kubectl."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path

import pytest

from dtj.main import main
from dtj_core.plan.model import Object
from hack.cluster.controlplane import ControlPlane
from tests.unit.client import test_convert_public as public
from tests.unit.client.converted import IMAGE, PYTORCHJOB, RUNTIME, TRAINJOB, changed, parsed

SPECS = "spec.pytorchReplicaSpecs"
RICH = {
    "spec.runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 3, "schedulingPolicy": {"queue": "q"}},
    "spec.elasticPolicy": {"minReplicas": 2, "maxReplicas": 8, "maxRestarts": 5},
    f"{SPECS}.Worker.restartPolicy": "ExitCode",
    f"{SPECS}.Master": None,
    f"{SPECS}.Worker.template.spec.volumes": [{"name": "data", "emptyDir": {}}],
    f"{SPECS}.Worker.template.spec.containers": [
        {
            "name": "pytorch",
            "image": IMAGE,
            "command": ["sh", "-c", "pip install x && torchrun train.py"],
            "resources": {"limits": {"nvidia.com/gpu": 4}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        {"name": "log", "image": "log:1"},
    ],
}
SBATCH = """#!/bin/bash
#SBATCH --job-name=My_Job --nodes=2-4 --gres=gpu:8 --cpus-per-task=12 --mem=64G --time=1-00:00:00
export NCCL_DEBUG=INFO
srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=8 train.py --rank $SLURM_PROCID
"""
WRAPPED = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {"name": "wrapper", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
    "spec": {
        "components": [
            {"template": parsed(changed(PYTORCHJOB, {"metadata.name": "wrapped", "metadata.namespace": None}))}
        ]
    },
}
VARIABLES = """#!/bin/bash
#SBATCH --job-name=variables --nodes=2 --gpus-per-node=4
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="python -m torch.distributed.run --nproc_per_node 4 --nnodes 2 --rdzv_endpoint $MASTER_ADDR:6000"
export CMD="$(pwd)/train.py --data $DATA --lr ${LR:-0.1}"
srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'
"""
FILES = {
    "plain.yaml": PYTORCHJOB,
    "rich.yaml": changed(PYTORCHJOB, RICH | {"metadata.name": "rich"}),
    "trainjob.yaml": f"{RUNTIME}---\n{changed(TRAINJOB, {'metadata.name': 'trainjob'})}",
    "wrapped.yaml": json.dumps(WRAPPED),
    "job.sbatch": SBATCH,
    "variables.sbatch": VARIABLES,
    "run.sh": "accelerate launch --config_file c.yaml --num_processes 4 train.py",
}


def dry_run(plane: ControlPlane, namespace: str, text: str) -> subprocess.CompletedProcess[str]:
    """Returns what kubectl prints when it applies objects without keeping them."""
    kubectl = [str(plane.bin_dir / "kubectl"), "--kubeconfig", str(plane.kubeconfig), "--namespace", namespace]
    return subprocess.run(
        [*kubectl, "apply", "--dry-run=server", "-f", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_converted_jobs_pass_a_dry_run_of_the_server(
    plane: ControlPlane, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.write_text(text.replace("namespace: team", f"namespace: {namespace}"))
        flags = [] if name.endswith(".yaml") else ["--image", IMAGE]
        flags += ["--gpus", "8"] if name == "run.sh" else []  # the sbatch script has its own
        assert main(["convert", *flags, str(path)]) == 0
        done = dry_run(plane, namespace, capsys.readouterr().out)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert done.stdout.endswith("created (server dry run)\n")


def pod_template(job: Object) -> Object:
    """Returns a job's pod template as an object of its own: the API server checks no template inside a job."""
    template = copy.deepcopy(job["spec"]["template"])
    for container in template["spec"]["containers"]:
        container.setdefault("image", job["spec"].get("image"))
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}


def test_jobs_of_public_files_pass_a_dry_run_of_the_server(plane: ControlPlane, namespace: str) -> None:
    """Applies the jobs of the files that are there, and demands all files where `DTJ_PUBLIC_JOBS` is set."""
    files = public.kept()
    if os.environ.get("DTJ_PUBLIC_JOBS"):
        assert len(files) == len(public.rows())
    jobs = [draft.job for row in files for draft in public.outcome(row.file.read_text(), row.file.name)[1]]
    items = [*jobs, *(pod_template(job) for job in jobs if "template" in job["spec"])]
    for item in items:
        item["metadata"]["namespace"] = namespace
    if items:  # kubectl refuses an empty list
        done = dry_run(plane, namespace, json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("created (server dry run)\n") == len(items)
