"""`dtj convert` of sbatch scripts: rare forms of options, programs in front of the training, and input of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.converted import IMAGE, at, notes, one
from tests.unit.client.test_convert_slurm import CONTAINER, SRUN, assert_carried, assert_refused, script

TRAIN = {"script": "train.py"}
# name: (script, fields of the job, texts of its notes)
CARRIED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "another name of an option": (
        script("--nodes=2", "--gpus-per-node=8", "--tasks-per-node=4"),
        {"spec.processesPerPod": 4},
        ["line 4 --ntasks-per-node (4)"],
    ),
    "letters in one token": (
        script("-N 1", body="srun -luN2 -n4 python3 train.py"),
        {"spec.replicas": 2, "spec.processesPerPod": 2, "spec.entrypoint": TRAIN},
        ["not needed: line 3 srun --unbuffered"],
    ),
    "options of srun without a value": (
        script("-N 1", body="srun --reboot --bcast -I -Z -r0 python3 train.py"),
        {"spec.entrypoint": TRAIN},
        ["unknown: line 3 srun --reboot: no directive", "unknown: line 3 srun --relative (0)"],
    ),
    "a number sign in a quotation": (
        script('--comment="run #3 of it" # the third', "-N 2"),
        {"spec.replicas": 2},
        ["line 2 --comment (run #3 of it)"],
    ),
    "conda run": (
        script("-N 1", body="srun conda run -n x --no-capture-output python3 train.py"),
        {f"{CONTAINER}.command": ["conda", "run", "-n", "x", "--no-capture-output", "python3", "train.py"]},
        [],
    ),
    "uv run of a launcher": (
        script("-N 2", "--gpus-per-node=8", body="uv sync\nsrun uv run torchrun --nnodes 2 --nproc-per-node 8 t.py"),
        {"spec.replicas": 2, "spec.processesPerPod": 1},
        ["a launcher that another program starts stays"],
    ),
    "env behind srun": (
        script("-N 1", body="srun --export=ALL env OMP_NUM_THREADS=8 python3 train.py"),
        {"spec.entrypoint": TRAIN, f"{CONTAINER}.env": [{"name": "OMP_NUM_THREADS", "value": "8"}]},
        [],
    ),
    "env in front of srun": (
        script("-N 1", body="env A=1 stdbuf -oL B='x y' nice -n 5 srun python3 train.py"),
        {
            "spec.entrypoint": TRAIN,
            f"{CONTAINER}.env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x y"}],
        },
        [],
    ),
    "env inside of a container": (
        script("-N 1", body="srun env A=1 apptainer exec i.sif env B=2 python3 train.py"),
        {
            "spec.entrypoint": TRAIN,
            f"{CONTAINER}.env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        },
        [],
    ),
    "a variable of another program": (
        script("-N 1", body=f"CUDA_VISIBLE_DEVICES=0 python3 prepare.py\n{SRUN}"),
        {"spec.entrypoint": TRAIN, f"{CONTAINER}.env": None},
        ["not carried over: line 3 (CUDA_VISIBLE_DEVICES=0 python3 prepare.py)"],
    ),
    "another program on the training's line": (
        script("-N 1", body=f"{SRUN} && python3 eval.py"),
        {"spec.entrypoint": TRAIN},
        ["not carried over: line 3 (python3 eval.py): the script is not run"],
    ),
}
REFUSED: dict[str, tuple[str, str]] = {
    "a program in a here-document": (
        script("-N 1", body="srun python3 - <<EOF\nprint('hello')\nEOF"),
        "line 3: the command reads its program or input from a here-document (<<EOF)",
    ),
    "a shell with a here-document": (
        script("-N 1", body="srun bash <<'EOF'\ntorchrun t.py\nEOF"),
        "line 3: the command reads its program or input from a here-document (<<EOF)",
    ),
    "a script in Python": (
        "#!/usr/bin/env python3\n#SBATCH -N 2\nprint('it is')\n",
        "the script is a program for python3: give its command with --command",
    ),
}


@pytest.mark.parametrize(("text", "fields", "texts"), CARRIED.values(), ids=CARRIED)
def test_rare_form_is_carried_or_noted(text: str, fields: dict[str, Any], texts: list[str]) -> None:
    assert_carried(text, fields, texts)


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_program_that_no_pod_would_have_is_refused(text: str, message: str) -> None:
    assert_refused(text, message)


def test_script_in_python_is_converted_with_its_command() -> None:
    text = "#!/usr/bin/env python3\n#SBATCH -N 2\nprint('''it's''')\n"
    draft = one(text, image=IMAGE, command="python3 train.py")
    assert (draft.job["spec"]["replicas"], draft.job["spec"]["entrypoint"]) == (2, TRAIN)


def test_input_file_of_the_training_is_noted_as_such() -> None:
    draft = one(script("-N 1", body=f"{SRUN} < answers.txt 2> errors.txt"), image=IMAGE)
    assert "line 3 (< answers.txt 2> errors.txt): a rank has no input, and its output" in notes(draft)


# command line of a rank: (arguments of the entrypoint, or the command of the container)
LITERAL: dict[str, tuple[str, Any]] = {
    "interpolations of Hydra": (
        "torchrun t.py 'dir=out/${now:%Y}' 'lr=${base_lr}' \"x=\\${y}\" 're=a$'",
        ["dir=out/${now:%Y}", "lr=${base_lr}", "x=${y}", "re=a$"],
    ),
    "what the kubelet would read": ("torchrun t.py 'a$(B)' 'a$$b' '$'", ["a$$(B)", "a$$$b", "$"]),
    "beside what a shell of each rank reads": (
        "python3 t.py 'lr=${base_lr}' \"$PWD/\\$x\"",
        ["sh", "-c", "exec python3 t.py 'lr=${base_lr}' \"$PWD/\\$x\""],
    ),
    "in a variable": ("eval true; A='x$y'; srun python3 t.py \"$A\"", ["x$y"]),
    "inside of a shell's text": ("bash -c \"torchrun t.py 'lr=\\${base_lr}'\"", ["lr=${base_lr}"]),
    "in front of a launcher that stays": (
        "numactl -l torchrun --nproc-per-node 2 t.py 'lr=${base_lr}'",
        [
            "sh",
            "-c",
            "export PET_NNODES=$WORLD_SIZE PET_NODE_RANK=$RANK PET_MASTER_ADDR=$MASTER_ADDR"
            " PET_MASTER_PORT=$MASTER_PORT; exec numactl -l torchrun --nproc-per-node 2 t.py 'lr=${base_lr}'",
        ],
    ),
}


@pytest.mark.parametrize(("body", "expected"), LITERAL.values(), ids=LITERAL)
def test_dollar_that_no_shell_expands_stays(body: str, expected: Any) -> None:
    draft = one(script("-N 1", "--gpus-per-node=1", body=body if "srun" in body else f"srun {body}"), image=IMAGE)
    entrypoint = draft.job["spec"].get("entrypoint")
    assert (entrypoint["args"] if entrypoint else at(draft.job, f"{CONTAINER}.command")) == expected
    assert "no value is known" not in notes(draft)


def test_variable_of_a_shells_text_keeps_its_dollar() -> None:
    draft = one(script("-N 1", body="srun bash -c \"export A='x\\$y'; torchrun t.py\""), image=IMAGE)
    assert at(draft.job, f"{CONTAINER}.env") == [{"name": "A", "value": "x$y"}]
