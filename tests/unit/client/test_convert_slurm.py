"""`dtj convert` of an sbatch script: directives, lines, srun and launchers."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.errors import InputError
from tests.unit.client.converted import IMAGE, at, lost_lines, notes, one

CONTAINER = "spec.template.spec.containers[0]"
SRUN = "srun python3 train.py"


def script(*directives: str, body: str = SRUN) -> str:
    """Returns an sbatch script."""
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {one}" for one in directives), body, ""])


def assert_carried(text: str, fields: dict[str, Any], texts: list[str]) -> None:
    """Checks that the job has these fields, the notes have these texts, and no line of the script is lost."""
    draft = one(text, "train_7b.sbatch", image=IMAGE)
    assert {path: at(draft.job, path) for path in fields} == fields
    for each in texts:
        assert each in notes(draft)
    assert lost_lines(text, draft) == []


def assert_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        one(text, image=IMAGE)
    assert message in str(refused.value)


# name: (script, fields of the job, texts of its notes)
CARRIED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "nodes": (script("--nodes=4"), {"spec.replicas": 4}, ["line 2 --nodes (4): spec.replicas"]),
    "short names": (
        script("-N 2", "-J a", "-t 5"),
        {"spec.replicas": 2, "metadata.name": "a"},
        ["line 3 --job-name (a)"],
    ),
    "several on a line": (script("-N 2 --job-name=b # c"), {"spec.replicas": 2, "metadata.name": "b"}, []),
    "a range of nodes": (
        script("--nodes=2-4"),
        {"spec.replicas": 4, "spec.elastic": {"minReplicas": 2, "maxReplicas": 4}},
        [],
    ),
    "tasks of a node": (
        script("--nodes=2", "--ntasks-per-node=4"),
        {"spec.processesPerPod": 4},
        ["--ntasks-per-node (4)"],
    ),
    "tasks of all nodes": (script("--nodes=2", "--ntasks=8"), {"spec.processesPerPod": 4}, ["--ntasks (8)"]),
    "tasks of all nodes and of each": (
        script("--ntasks=16", "--ntasks-per-node=8"),
        {"spec.replicas": 2, "spec.processesPerPod": 8},
        [],
    ),
    "GPUs of all nodes and of each": (
        script("--gpus=16", "--gpus-per-node=8"),
        {"spec.replicas": 2, f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 8}},
        [],
    ),
    "a model without a number": (
        script("--gres=gpu:a100"),
        {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 1}},
        ["choose a100 with spec.template.spec.nodeSelector"],
    ),
    "a slice of a GPU": (
        script("--gres=gpu:2g.20gb:1"),
        {},
        ["(gpu:2g.20gb:1): request nvidia.com/mig-2g.20gb in the container's resources instead"],
    ),
    "another resource": (
        script("--gres=gpu:2,nvme:1"),
        {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 2}},
        ["not carried over: line 2 --gres (gpu:2,nvme:1): request nvme:1 as an extended resource"],
    ),
    "a directive behind a command": (
        script("-N 2", body=f"module load x\n#SBATCH --gpus-per-node=4\n{SRUN}"),
        {"spec.replicas": 2, f"{CONTAINER}.resources": None},
        ["not carried over: line 4 (--gpus-per-node=4): sbatch reads no directive behind the first command"],
    ),
    "a directive that is none": (script("nodes"), {}, ["unknown: line 2 (nodes): no directive that is known here"]),
    "gres": (
        script("--gres=gpu:a100:4", "--ntasks-per-node=4"),
        {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 4}, "spec.processesPerPod": None},
        ["choose a100 with spec.template.spec.nodeSelector"],
    ),
    "gres without a number": (script("--gres=gpu"), {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 1}}, []),
    "gpus": (script("-N 2", "--gpus=8"), {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 4}}, []),
    "gpus-per-node": (script("--gpus-per-node=2"), {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 2}}, []),
    "gpus-per-task": (
        script("--ntasks-per-node=2", "--gpus-per-task=1"),
        {f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 2}},
        [],
    ),
    "processors": (
        script("--ntasks-per-node=2", "--cpus-per-task=8"),
        {f"{CONTAINER}.resources.requests": {"cpu": "16"}},
        ["--cpus-per-task (8)"],
    ),
    "memory": (script("--mem=64G"), {f"{CONTAINER}.resources.limits": {"memory": "64Gi"}}, ["--mem (64G)"]),
    "memory in megabytes": (script("--mem=500"), {f"{CONTAINER}.resources.requests": {"memory": "500Mi"}}, []),
    "all memory": (script("--mem=0"), {f"{CONTAINER}.resources": None}, ["--mem (0)"]),
    "memory of a processor": (
        script("-c 4", "--mem-per-cpu=2G"),
        {f"{CONTAINER}.resources.limits": {"memory": "8Gi"}},
        [],
    ),
    "memory of a task's only processor": (
        script("--ntasks-per-node=8", "--mem-per-cpu=4G"),
        {
            f"{CONTAINER}.resources.limits": {"memory": "32Gi"},
            f"{CONTAINER}.resources.requests": {"memory": "32Gi", "cpu": "8"},
        },
        [],
    ),
    "memory of a GPU's processors": (
        script("--ntasks-per-node=8", "--gpus-per-node=2", "--cpus-per-gpu=6", "--mem-per-cpu=1G"),
        {f"{CONTAINER}.resources.requests": {"memory": "12Gi", "cpu": "12"}},
        [],
    ),
    "time": (script("--time=1-02:00:00"), {"spec.activeDeadlineSeconds": 93600}, ["--time (1-02:00:00)"]),
    "minutes": (script("--time=30"), {"spec.activeDeadlineSeconds": 1800}, []),
    "minutes and seconds": (script("--time=10:30"), {"spec.activeDeadlineSeconds": 630}, []),
    "days and hours": (script("--time=2-1"), {"spec.activeDeadlineSeconds": 176400}, []),
    "no limit": (script("--time=UNLIMITED"), {"spec.activeDeadlineSeconds": None}, []),
    "a name for people": (
        script("--job-name=My_Job.1"),
        {"metadata.name": "my-job-1"},
        ["--job-name (My_Job.1): metadata.name: my-job-1"],
    ),
    "the file's name": (script("-N 1"), {"metadata.name": "train-7b"}, ["the name of the file (train_7b)"]),
    "partition": (script("-p gpu"), {}, ["not carried over: line 2 --partition (gpu)"]),
    "output": (script("-o a.out"), {}, ["not carried over: line 2 --output (a.out)"]),
    "an unknown directive": (script("--colour=red"), {}, ["unknown: line 2 --colour (red)"]),
    "chdir": (script("-D /work"), {f"{CONTAINER}.workingDir": "/work"}, []),
    "cd": (script("-N 1", body=f"cd /work\n{SRUN}"), {f"{CONTAINER}.workingDir": "/work"}, ["line 3 (cd /work)"]),
    "a relative directory": (script("-D sub"), {f"{CONTAINER}.workingDir": None}, ["set workingDir of the container"]),
    "an image of pyxis": (
        script("--container-image=nvcr.io#nvidia/pytorch:24.01-py3"),
        {"spec.image": IMAGE},
        ["line 2 --container-image"],
    ),
    "a here-document": (
        script("-N 1", body=f"cat > host.txt <<EOF\nit's $X\nsrun python3 no.py\nEOF\n{SRUN} > out.log"),
        {"spec.entrypoint": {"script": "train.py"}},
        ["line 7 (> out.log): no shell reads the command any more"],
    ),
    "data that is copied first": (
        script("-N 1", body=f"srun mkdir -p /scratch\nsrun --ntasks=1 cp -r /data /scratch\n{SRUN}"),
        {"spec.entrypoint": {"script": "train.py"}},
        ["not carried over: line 3 (srun mkdir -p /scratch): the script is not run"],
    ),
    "apptainer": (
        script("-N 2", body="srun apptainer -q exec --nv -B /a:/b --env=A=1 torch.sif torchrun --nnodes 2 t.py --b"),
        {"spec.image": IMAGE, "spec.entrypoint": {"script": "t.py", "args": ["--b"]}},
        [
            "not needed: line 3 --nv: the pod is the container",
            "not carried over: line 3 -B (/a:/b): write volumes",
            "not carried over: line 3 --env (A=1): write variables",
            "not carried over: line 3 (torch.sif): the image of the script: --image takes its place",
        ],
    ),
    "singularity without srun": (
        script("-N 1", body="singularity run --nv docker://org/i:1 python3 t.py"),
        {"spec.entrypoint": {"script": "t.py"}},
        ["line 3 (docker://org/i:1): the image of the script"],
    ),
    "a shell script": (
        script("-N 1", body="srun ./train.sh --a"),
        {f"{CONTAINER}.command": ["./train.sh", "--a"]},
        ["if the shell script starts torchrun, set spec.processesPerPod to 1"],
    ),
    "an option that only a run knows and that nothing needs": (
        script("-N 1", body="srun --jobid $SLURM_JOBID python3 t.py"),
        {},
        ["not needed: line 3 srun --jobid ($SLURM_JOBID)"],
    ),
    "exports": (
        script("-N 1", body=f"export A=1 B='x y'\nC=3\n{SRUN} $C"),
        {
            f"{CONTAINER}.env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x y"}],
            "spec.entrypoint.args": ["3"],
        },
        ["in another form: line 3 A (1)"],
    ),
    "variables of the rendezvous": (
        script(
            "-N 2", body=f"export MASTER_ADDR=$(scontrol show hostnames | head -n 1)\nexport MASTER_PORT=29500\n{SRUN}"
        ),
        {f"{CONTAINER}.env": None},
        ["not needed: line 3 MASTER_ADDR", "not needed: line 4 MASTER_PORT (29500)"],
    ),
    "a variable that only a run knows": (
        script("-N 1", body=f"export OUT=/runs/$(date +%s)\n{SRUN} --out $OUT"),
        {f"{CONTAINER}.env": None},
        ["not carried over: line 3 OUT", "$(…)"],
    ),
    "modules": (script("-N 1", body=f"module load cuda\n{SRUN}"), {}, ["not carried over: line 3 (module load cuda)"]),
    "conda": (script("-N 1", body=f"source ~/.bashrc\nconda activate x\n{SRUN}"), {}, ["line 4 (conda activate x)"]),
    "other commands": (
        script("-N 1", body=f"mkdir -p x\necho y\n{SRUN}"),
        {},
        ["not carried over: line 3 (mkdir -p x)"],
    ),
    "an if": (
        script("-N 1", body=f"if [ -d x ]; then\n  cp x y\nfi\n{SRUN}"),
        {"spec.entrypoint.script": "train.py"},
        ["not carried over: line 4 (cp x y)"],
    ),
    "torchrun": (
        script(
            "-N 2",
            "--gpus-per-node=8",
            "--ntasks-per-node=1",
            body="srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE"
            " --rdzv_id $RANDOM \\\n  train.py",
        ),
        {"spec.replicas": 2, "spec.processesPerPod": None, "spec.entrypoint": {"script": "train.py"}},
        ["--nnodes (2)", "--nproc_per_node (8)"],
    ),
    "a launcher in a variable": (
        script("-N 2", body='L="torchrun --nnodes 2 --node_rank \\$SLURM_PROCID"\nsrun bash -c "$L train.py --a b"'),
        {"spec.entrypoint": {"script": "train.py", "args": ["--a", "b"]}},
        [],
    ),
    "an array of flags": (
        script("-N 2", body='ARGS=(--nnodes 2 \\\n  --nproc-per-node 3)\nsrun torchrun "${ARGS[@]}" train.py "$@"'),
        {"spec.processesPerPod": 3, "spec.entrypoint": {"script": "train.py"}},
        [],
    ),
    "an array that grows, with what only a run knows": (
        script(
            "-N 2",
            body="A=(--nnodes 2 --rdzv_endpoint=$(hostname) )\nA+=(--nproc-per-node 3)\nsrun torchrun ${A[@]} t.py",
        ),
        {"spec.processesPerPod": 3, "spec.entrypoint": {"script": "t.py"}},
        ["not needed: line 5: --rdzv_endpoint ($(hostname))"],
    ),
    "a default with a variable": (
        script("-N 1", body=f': "${{IMAGE:=$(pwd)/${{NAME}}.sqsh}}"\n{SRUN}'),
        {},
        ["not carried over: line 3 IMAGE ($(pwd)/${NAME}.sqsh): depends on"],
    ),
    "a program before the training": (
        script("-N 1", body=f"python3 prepare.py\n{SRUN}"),
        {"spec.entrypoint": {"script": "train.py"}},
        ["not carried over: line 3 (python3 prepare.py): the script is not run"],
    ),
    "exports of what is known and of what is not": (
        script("-N 1", body=f"A=1\nexport A B MASTER_PORT C=2\n{SRUN}"),
        {f"{CONTAINER}.env": [{"name": "A", "value": "1"}, {"name": "C", "value": "2"}]},
        [
            "not needed: line 4 MASTER_PORT",
            "in another form: line 4 A (1): env",
            "not carried over: line 4 B: no value is known here",
        ],
    ),
    "bare options of pyxis": (
        script("-N 2", body="srun -X --no-container-remap-root --container-readonly torchrun --nnodes 2 t.py"),
        {"spec.replicas": 2, "spec.entrypoint": {"script": "t.py"}},
        ["not needed: line 3 srun --no-container-remap-root", "not needed: line 3 srun --disable-status"],
    ),
    "Slurm's variables in shell text": (
        script(
            "-N 2",
            body="srun bash -c 'date; torchrun --nnodes=${SLURM_NNODES} --node_rank=$SLURM_PROCID t.py $SLURM_JOB_ID'",
        ),
        {
            f"{CONTAINER}.command[2]": "export PET_NNODES=$WORLD_SIZE PET_NODE_RANK=$RANK PET_MASTER_ADDR=$MASTER_ADDR"
            " PET_MASTER_PORT=$MASTER_PORT\ndate; torchrun --nnodes=2 --node_rank=$RANK t.py $SLURM_JOB_ID"
        },
        ["not carried over: line 3: no value is known here for SLURM_JOB_ID"],
    ),
    "a default": (
        script("-N 1", body=': "${LAYERS:=4}"\nsrun python3 t.py $LAYERS ${HEADS:-2}'),
        {"spec.entrypoint.args": ["4", "2"]},
        ["line 3 LAYERS (4)"],
    ),
    "options that only a run knows": (
        script("-N 1", body='srun "${ARGS[@]}" python3 t.py'),
        {"spec.entrypoint": {"script": "t.py"}},
        ["options of srun whose value can't be known here"],
    ),
    "options of srun": (
        script("-N 1", body="srun --ntasks-per-node=2 --kill-on-bad-exit=1 -l python3 -u train.py"),
        {"spec.processesPerPod": 2, "spec.entrypoint": {"script": "train.py"}},
        ["not needed: line 3 srun --label"],
    ),
    "Slurm's rank": (
        script("-N 1", body="srun python3 train.py --rank $SLURM_PROCID"),
        {f"{CONTAINER}.command": ["sh", "-c", 'exec python3 train.py --rank "$RANK"']},
        [],
    ),
    "variables in front of the command": (
        script("-N 1", body="OMP_NUM_THREADS=4 srun python3 train.py"),
        {f"{CONTAINER}.env": [{"name": "OMP_NUM_THREADS", "value": "4"}]},
        [],
    ),
    "a product": (
        script("-N 2", body="G=4\nsrun accelerate launch --num_processes $((G * SLURM_NNODES)) --num_machines 2 t.py"),
        {"spec.processesPerPod": 4, "spec.replicas": 2},
        ["--num_processes (8)"],
    ),
}
REFUSED: dict[str, tuple[str, str]] = {
    "array": (script("--array=0-3"), "line 2 --array=0-3: one job is one training"),
    "a heterogeneous job": (script("-N 1", "hetjob", "-N 2"), "line 3 hetjob: all pods of a job are the same"),
    "several programs of one srun": (
        script("-N 2", body="srun -n 1 python3 a.py : -n 1 python3 b.py"),
        "line 3: srun starts several programs",
    ),
    "a part of a heterogeneous job": (
        script("-N 2", body="srun --het-group=1 python3 t.py"),
        "line 3 srun --het-group=1: all pods of a job run one program",
    ),
    "no nodes": (script("-N 0", "-n 4"), "line 2 --nodes: write a whole number of 1 or more"),
    "no tasks": (script("-N 1", "-n 0"), "line 3 --ntasks: write a whole number of 1 or more, not '0'"),
    "the command of an image": (
        script("-N 1", body="srun apptainer run --nv a.sif"),
        "line 3: the image's own command is not in the file: give it with --command",
    ),
    "docker": (
        script("-N 1", body="srun docker run --gpus all i torchrun t.py"),
        "docker can't be converted, because the pod is the container itself",
    ),
    "no training": (script("-N 1", body="echo a"), "no line starts the training: write srun torchrun train.py"),
    "two trainings": (script("-N 1", body=f"{SRUN}\nsrun python3 b.py"), "line 3 (srun python3 train.py) and line 4"),
    "a loop": (
        script("-N 1", body=f"for i in 1 2; do\n{SRUN} $i\ndone"),
        "started inside a loop, condition or function",
    ),
    "uneven tasks": (script("-N 2", "--ntasks=3"), "line 3 --ntasks: 3 can't be divided by --nodes 2"),
    "uneven GPUs": (script("-N 2", "--gpus=3"), "line 3 --gpus: 3 can't be divided by --nodes 2"),
    "nodes as a variable": (
        script("--nodes=$N"),
        "line 2 --nodes: write a whole number of 1 or more in the file",
    ),
    "time as text": (script("--time=soon"), "line 2 --time: write hours:minutes:seconds, not 'soon'"),
    "memory as text": (script("--mem=much"), "line 2 --mem: write a number with K, M, G or T, not 'much'"),
    "an open quotation": (script("-N 1", body="srun python3 'x"), "line 3: the quotation ' has no end"),
    "MPI": (script("-N 1", body="mpirun -n 4 python3 x.py"), "mpirun can't be converted"),
    "two numbers of nodes": (
        script("-N 2", body="srun torchrun --nnodes=4 x.py"),
        "--nnodes 4 contradicts line 2 --nodes",
    ),
}


@pytest.mark.parametrize(("text", "fields", "texts"), CARRIED.values(), ids=CARRIED)
def test_line_is_carried_or_noted(text: str, fields: dict[str, Any], texts: list[str]) -> None:
    assert_carried(text, fields, texts)


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_single_training_is_refused(text: str, message: str) -> None:
    assert_refused(text, message)


def test_gpus_that_no_directive_names_come_from_the_flag() -> None:
    draft = one(script("-N 1"), image=IMAGE, gpus=8)
    assert at(draft.job, f"{CONTAINER}.resources.limits") == {"nvidia.com/gpu": 8}
    assert "give --gpus N" in notes(one(script("-N 1"), image=IMAGE))


def test_gpus_flag_does_not_override_a_directive() -> None:
    with pytest.raises(InputError, match=r"^--gpus: line 2 --gres is in the script: change it there"):
        one(script("--gres=gpu:4"), image=IMAGE, gpus=8)


def test_image_of_a_registry_in_apptainer_needs_no_flag() -> None:
    draft = one(script("-N 1", body="srun apptainer exec docker://org/i:1 python3 t.py"))
    assert draft.job["spec"]["image"] == "org/i:1"


def test_missing_image_is_asked_for_with_its_flag() -> None:
    with pytest.raises(InputError, match=r"no container image: .* give --image"):
        one(script("-N 1"))


def test_image_of_the_script_needs_no_flag() -> None:
    draft = one(script("--container-image=nvcr.io#nvidia/pytorch:24.01-py3"))
    assert draft.job["spec"]["image"] == "nvcr.io/nvidia/pytorch:24.01-py3"


def test_command_flag_chooses_between_two_trainings() -> None:
    draft = one(script("-N 2", body=f"{SRUN}\nsrun python3 b.py"), image=IMAGE, command="torchrun c.py", name="c")
    assert draft.job["spec"]["entrypoint"] == {"script": "c.py"}
    assert draft.job["metadata"]["name"] == "c"
    assert draft.job["spec"]["replicas"] == 2
