"""`dtj convert` of scripts that put their training together from variables: what is known, and what is left."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.convert import shell
from dtj.errors import InputError
from tests.unit.client.converted import IMAGE, PYTORCHJOB, at, changed, notes, one

COMMAND = "spec.template.spec.containers[0].command"
ARGS = "spec.entrypoint.args"
UNKNOWN = "no value is known here for"


def script(*lines: str, nodes: int = 2) -> str:
    """Returns an sbatch script."""
    return "\n".join(["#!/bin/bash", f"#SBATCH --nodes={nodes} --gpus-per-node=4", *lines, ""])


# name: (lines of the script, fields of the job, texts of its notes)
FOLLOWED: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "an argument of the script, read in a case of several lines": (
        [
            "LR=0.1",
            'while [[ $# -gt 0 ]]; do case "$1" in',
            "  --steps)",
            "    STEPS=$2; shift 2 ;;",
            "  --lr)",
            "    LR=$2; shift 2 ;;",
            "esac; done",
            "srun torchrun train.py --lr $LR",
        ],
        {ARGS: ["--lr", "$(LR)"]},
        ["line 8 LR ($2): set inside a condition or loop", f"{UNKNOWN} LR: write it"],
    ),
    "a default that a condition changes": (
        ["MODE=", "if [ -d /fast ]; then MODE=--fast; fi", "srun torchrun train.py $MODE"],
        {"spec.entrypoint": {"script": "train.py"}},
        ["line 4 MODE (--fast): set inside a condition or loop"],
    ),
    "launcher and command in exported variables": (
        [
            "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
            'export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 4 --nnodes 2 \\',
            '  --rdzv_endpoint $MASTER_ADDR:6000"',
            'export CMD="`pwd`/train.py --data $DATA/x --lr 0.1"',
            "srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'",
        ],
        {
            "spec.replicas": 2,
            "spec.entrypoint": None,
            COMMAND: ["sh", "-c", 'exec python3 -u "`pwd`/train.py" --data "$DATA/x" --lr 0.1'],
        },
        ["(`pwd`): runs in the pod, by a shell of each rank", f"{UNKNOWN} DATA: write it"],
    ),
    "options of srun in a variable": (
        [
            "NODELIST=$(scontrol show hostnames $SLURM_JOB_NODELIST)",
            'SRUN_ARGS="--kill-on-bad-exit=1 --nodes=2 --nodelist=$(scontrol show hostnames x)"',
            "srun $SRUN_ARGS torchrun train.py",
        ],
        {"spec.replicas": 2, "spec.entrypoint": {"script": "train.py"}},
        ["srun --kill-on-bad-exit (1)", "srun --nodelist ("],
    ),
    "a product by expr": (
        [
            "N=2",
            'CMD="accelerate launch --num_machines=2 --num_processes=$(expr $N \\* 4) a.py"',
            'srun bash -c "$CMD"',
        ],
        {"spec.replicas": 2, "spec.processesPerPod": None, "spec.entrypoint": {"script": "a.py"}},
        [],
    ),
    "one element of an array that Slurm fills": (
        ["HOSTS=($(scontrol show hostnames))", "srun torchrun train.py --server ${HOSTS[1]}"],
        {},
        [f"{UNKNOWN} HOSTS: write it"],
    ),
    "what Slurm prints": (
        ['A="--hosts $(squeue -h) --lr 1"', "srun torchrun train.py $A"],
        {},
        ["not carried over: line 4 ($(squeue -h)): runs in the pod, and there is no Slurm: write what it prints"],
    ),
    "a variable that continues itself": (
        ['EXTRA="$EXTRA --fp16"', "srun torchrun train.py $EXTRA"],
        {ARGS: ["--fp16"]},
        [],
    ),
    "a path that continues that of the image": (
        ["export LD_LIBRARY_PATH=/efa/lib:$LD_LIBRARY_PATH", "srun torchrun train.py"],
        {"spec.template.spec.containers[0].env": None},
        ["(/efa/lib:$LD_LIBRARY_PATH): the image's own LD_LIBRARY_PATH is not known here"],
    ),
    "variables of a shell's text": (
        ["srun sh -c 'for i in 1 2; do X=$i; done; cd $HOME && python train.py $X $DATA'"],
        {},
        [f"{UNKNOWN} DATA: write it"],
    ),
    "a default in quotation marks": (
        ['NGPU=${NGPU:-"4"}', "srun torchrun --nproc_per_node=${NGPU} train.py"],
        {"spec.processesPerPod": None, "spec.entrypoint": {"script": "train.py"}},
        ["--nproc_per_node (4)"],
    ),
    "values that nobody has filled in": (
        ["OUT=/data/<YOUR_NAME>", "export TOKEN=<your-token> # secret", "srun torchrun train.py --out $OUT/x"],
        {"spec.template.spec.containers[0].env": None, ARGS: ["--out", "$(OUT)/x"]},
        [
            "not carried over: line 3 OUT (<YOUR_NAME>): stands for a value",
            "not carried over: line 4 TOKEN (<your-token>)",
            f"{UNKNOWN} OUT",
        ],
    ),
    "arguments of the script": (
        ["OUT=$1", "srun torchrun train.py --out $OUT"],
        {},
        [f"{UNKNOWN} $1: write it"],
    ),
    "a program in front of torchrun": (
        ["srun numactl -N 0 torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$(hostname) train.py --lr 1"],
        {
            COMMAND: [
                "sh",
                "-c",
                "export PET_NNODES=$WORLD_SIZE PET_NODE_RANK=$RANK PET_MASTER_ADDR=$MASTER_ADDR"
                " PET_MASTER_PORT=$MASTER_PORT; exec numactl -N 0 torchrun --nproc_per_node 4 train.py --lr 1",
            ]
        },
        ["not needed: line 3: --rdzv_endpoint ($(hostname))"],
    ),
    "a default in the default of another variable": (
        [
            'GPUS="${GPUS:-${SLURM_GPUS_ON_NODE:-8}}"',
            "srun torchrun --nproc-per-node ${NPROC:-$GPUS} train.py --lr ${LR:-$RATE}",
        ],
        {"spec.entrypoint": {"script": "train.py", "args": ["--lr", "$(LR)"]}},
        ["line 3 GPUS (4): filled in", "--nproc-per-node (4)", f"{UNKNOWN} LR: write it"],
    ),
    "a number for a launcher's variable": (
        ["srun accelerate launch --num_processes 8 --gradient_accumulation_steps $STEPS train.py"],
        {"spec.template.spec.containers[0].env": None},
        [f"--gradient_accumulation_steps ($STEPS): {UNKNOWN} ACCELERATE_GRADIENT_ACCUMULATION_STEPS"],
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_variables_are_followed(name: str) -> None:
    lines, fields, texts = FOLLOWED[name]
    draft = one(script(*lines), "job.sbatch", image=IMAGE)
    assert {path: at(draft.job, path) for path in fields} == fields
    report = notes(draft)
    assert [text for text in texts if text not in report] == [], report


REFUSED = {
    "a command that is not in the file": (
        script('srun bash -c "$LAUNCHER $CMD"'),
        r"line 3: \$LAUNCHER \$CMD: the command can't be known here: give it with --command",
    ),
    "another number of pods, behind a program": (
        script("srun nsys profile torchrun --nnodes=3 train.py"),
        r"--nnodes 3 contradicts line 2 --nodes, which asks for 2 pods",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_train_is_refused(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        one(text, "job.sbatch", image=IMAGE)


def test_text_with_another_number_of_pods_is_refused() -> None:
    # This torchrun would wait for a third pod for ever.
    text = "pip install x; torchrun --nnodes=3 train.py"
    containers = [{"name": "pytorch", "image": IMAGE, "command": ["sh", "-c", text]}]
    path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers"
    source = changed(PYTORCHJOB, {"spec.pytorchReplicaSpecs.Master": None, path: containers})
    with pytest.raises(
        InputError, match=r"--nnodes 3 contradicts spec.pytorchReplicaSpecs.\*.replicas, which asks for 2"
    ):
        one(source.replace("replicas: 3", "replicas: 2"))


def test_places_that_stay_in_text_are_noted() -> None:
    text = (
        "login; accelerate launch --use_deepspeed --machine_rank=0 --main_process_ip=$MASTER_ADDR a.py\n"
        "torchrun --standalone b.py"
    )
    containers = [{"name": "pytorch", "image": IMAGE, "command": ["sh", "-c", text]}]
    path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers"
    report = notes(one(changed(PYTORCHJOB, {"spec.pytorchReplicaSpecs.Master": None, path: containers})))
    assert f"not carried over: {path}[0].command: --machine_rank (0): stays in the text, but the pods have" in report
    assert f"not carried over: {path}[0].command: --standalone: stays in the text" in report
    assert "command: --main_process_ip" not in report


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (r"IFS=$'\n\t'", "IFS=\n\t"),
        (r"say $'it\'s \x41\\'", "say it's A\\"),
        (r"say $'no $VARIABLE'", "say no $VARIABLE"),
        ('say $"translated"', "say translated"),
        ("""A=$(sed 's/)//' <<< "(a b")""", """A=$(sed 's/)//' <<< "(a b")"""),
        ('A=$(echo \\) ")")', 'A=$(echo \\) ")")'),
        ("A=(1 # don't stop :)\n2)", "A=1 2"),
        ("A=$(cat <<EOF\nit's\nEOF\n)", "A=$(cat <<EOF\nit's\nEOF\n)"),
    ],
)
def test_quotations_end_where_the_shell_ends_them(line: str, read: str) -> None:
    assert [step.text for step in shell.commands(f"{line}\ntorchrun train.py")] == [read, "torchrun train.py"]


def test_bracket_in_a_quotation_stays_in_the_output_of_a_command() -> None:
    lines = ["A=\"--x $(sed 's/)//' < f) --y\"", "srun torchrun train.py $A"]
    assert at(one(script(*lines), "job.sbatch", image=IMAGE).job, COMMAND) == [
        "sh",
        "-c",
        "exec python3 -u train.py --x \"$(sed 's/)//' < f)\" --y",
    ]


def test_open_quotation_of_c_is_refused() -> None:
    with pytest.raises(InputError, match=r"line 3: the quotation \$' has no end"):
        one(script("IFS=$'\\n", "srun torchrun train.py"), "job.sbatch", image=IMAGE)


def test_line_that_sets_nothing_is_noted() -> None:
    lines = ["export", "declare -A MAP", ":", "srun torchrun train.py"]
    report = notes(one(script(*lines), "job.sbatch", image=IMAGE))
    assert [f"not needed: line {at}" in report for at in (3, 4, 5)] == [True] * 3, report


def test_commands_after_a_case_are_outside_of_it() -> None:
    text = "case $1 in -a) A=1;; b|c) B=1;; (d) D=1;; esac\n(cd x)\nC=1"
    assert {step.text: step.depth for step in shell.commands(text) if "=" in step.text} == {
        "A=1": 1,
        "B=1": 1,
        "D=1": 1,
        "C=1": 0,
    }


def test_prefix_without_a_command_is_noted() -> None:
    draft = one(script("env", "srun torchrun train.py"), "job.sbatch", image=IMAGE)
    assert "not needed: line 3 (env): it changes nothing of the training" in notes(draft)


def test_directory_of_the_pod_is_read_by_a_shell() -> None:
    draft = one(script("/usr/bin/time srun torchrun $PWD/train.py --home $HOME"), "job.sbatch", image=IMAGE)
    assert at(draft.job, COMMAND) == ["sh", "-c", 'exec python3 -u "$PWD/train.py" --home $HOME']
    assert "not carried over: line 3 ($HOME $PWD): is read by a shell of each rank" in notes(draft)
    assert UNKNOWN not in notes(draft)
