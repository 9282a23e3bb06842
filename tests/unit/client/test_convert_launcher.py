"""`dtj convert` of a launcher's command line: torchrun, accelerate launch, composer and deepspeed."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.convert import shell
from dtj.errors import InputError
from dtj_agent.workers.launchers import is_launcher
from dtj_core.api import launcher_flags as flags
from dtj_core.api.launcher_flags import How
from tests.unit.client.converted import IMAGE, PYTORCHJOB, at, changed, notes, one

CONTAINER = "spec.template.spec.containers[0]"
# name: (command, fields of the job, texts of its notes)
CARRIED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "torchrun": (
        "torchrun --nnodes=2 --nproc-per-node 8 train.py --lr 1",
        {
            "spec.replicas": 2,
            "spec.processesPerPod": 8,
            "spec.entrypoint": {"script": "train.py", "args": ["--lr", "1"]},
        },
        ["--nnodes (2)", "--nproc-per-node (8)", "torchrun: the agent starts the ranks itself"],
    ),
    "horovodrun": (
        "horovodrun -np 4 -H localhost:4 --gloo python train.py",
        {"spec.engine": "horovod", "spec.entrypoint": {"script": "train.py"}, "spec.processesPerPod": 4},
        ["-np (4)", "-H (localhost:4)", "horovodrun: the agent starts the ranks itself"],
    ),
    "one rank": ("torchrun train.py", {"spec.replicas": 1, "spec.processesPerPod": None}, []),
    "elastic": (
        "torchrun --nnodes=1:4 --max_restarts=3 --rdzv-backend c10d train.py",
        {"spec.replicas": 4, "spec.elastic": {"minReplicas": 1, "maxReplicas": 4}, "spec.restart.maxRestarts": 3},
        ["not needed: line 1: --rdzv-backend (c10d)"],
    ),
    "a module": ("torchrun -m pkg.train --a", {"spec.entrypoint": {"module": "pkg.train", "args": ["--a"]}}, []),
    "no Python": ("torchrun --no-python ./run a", {f"{CONTAINER}.command": ["./run", "a"]}, ["--no-python"]),
    "torch.distributed.run": (
        "python -m torch.distributed.run --nproc_per_node=2 t.py",
        {"spec.processesPerPod": 2},
        [],
    ),
    "torch.distributed.launch": (
        "python3 -u -m torch.distributed.launch --use_env --nproc_per_node=2 --master_port=1234 t.py",
        {"spec.processesPerPod": 2, "spec.entrypoint": {"script": "t.py"}},
        ["--use_env", "--master_port (1234)"],
    ),
    "torch.distributed.launch passes the rank as a flag": (
        "python -m torch.distributed.launch t.py",
        {"spec.entrypoint": {"script": "t.py"}},
        ["--local_rank: python -m torch.distributed.launch passed it to the script: read LOCAL_RANK"],
    ),
    "restarts that only a run knows": (
        "torchrun --max-restarts=$N t.py",
        {"spec.restart": None},
        ["not carried over: line 1: --max-restarts ($N): no whole number is known here: set spec.restart.maxRestarts"],
    ),
    "redirections": (
        "torchrun t.py --a > log 2>&1",
        {"spec.entrypoint.args": ["--a"]},
        ["not carried over: line 1 (> log 2>&1): no shell reads the command any more"],
    ),
    "a path, with Python beside it": (
        "/opt/conda/bin/torchrun --standalone -m t",
        {f"{CONTAINER}.command": ["/opt/conda/bin/python3", "-u", "-m", "t"], "spec.entrypoint": None},
        [
            "in another form: line 1: /opt/conda/bin/torchrun (/opt/conda/bin/python3): its Python is assumed to be",
            "not needed: line 1: --standalone",
        ],
    ),
    "a path of the system, with Python elsewhere": (
        "/usr/local/bin/torchrun t.py",
        {"spec.entrypoint": {"script": "t.py"}},
        [],
    ),
    "an interpreter with a path": (
        "/opt/venv/bin/python -m torch.distributed.run t.py",
        {f"{CONTAINER}.command": ["/opt/venv/bin/python", "-u", "t.py"], "spec.entrypoint": None},
        [],
    ),
    "an interpreter with a number": (
        "python3.10 -u -m torch.distributed.run t.py",
        {f"{CONTAINER}.command": ["python3.10", "-u", "t.py"], "spec.entrypoint": None},
        [],
    ),
    "an unknown flag": (
        "torchrun --colour red t.py",
        {"spec.entrypoint.script": "t.py"},
        ["unknown: line 1: --colour (red)"],
    ),
    "an unknown bare flag": (
        "torchrun --colour t.py",
        {"spec.entrypoint.script": "t.py"},
        ["unknown: line 1: --colour"],
    ),
    "accelerate": (
        "accelerate launch --num_processes 8 --num_machines 2 --machine_rank 0 --mixed_precision bf16 --multi_gpu"
        " t.py --a",
        {
            "spec.replicas": 2,
            "spec.processesPerPod": 4,
            f"{CONTAINER}.env": [{"name": "ACCELERATE_MIXED_PRECISION", "value": "bf16"}],
            "spec.entrypoint": {"script": "t.py", "args": ["--a"]},
        },
        ["not needed: line 1: --machine_rank (0)", "not needed: line 1: --multi_gpu"],
    ),
    "accelerate on processors": (
        "accelerate launch --cpu t.py",
        {f"{CONTAINER}.env": [{"name": "ACCELERATE_USE_CPU", "value": "true"}]},
        [],
    ),
    "accelerate with a file": (
        "accelerate launch --config_file c.yaml --num_machines 2 --num_processes 8 t.py",
        {
            "spec.replicas": 2,
            "spec.entrypoint": None,
            f"{CONTAINER}.command": [
                "sh",
                "-c",
                "exec accelerate launch --num_machines $WORLD_SIZE --machine_rank $RANK --main_process_ip $MASTER_ADDR"
                " --main_process_port $MASTER_PORT --deepspeed_multinode_launcher standard"
                " --num_processes 8 --config_file c.yaml t.py",
            ],
        },
        ["only the launcher acts on it", "one for each pod"],
    ),
    "accelerate's flag without a value": (
        "accelerate launch --num_machines 2 --num_processes 8 --same_network --mixed_precision bf16 t.py",
        {
            "spec.processesPerPod": 4,
            f"{CONTAINER}.env": [{"name": "ACCELERATE_MIXED_PRECISION", "value": "bf16"}],
            "spec.entrypoint": {"script": "t.py"},
        },
        ["not needed: line 1: --same_network:", "--mixed_precision (bf16)"],
    ),
    "numbers behind a plugin's file": (
        "accelerate launch --use_deepspeed --deepspeed_config_file conf/ds.json --num_machines 2 t.py",
        {"spec.replicas": 2},
        ["--deepspeed_config_file (conf/ds.json): only the launcher acts on it"],
    ),
    "horovodrun's flags in front of the command": (
        "horovodrun -np 4 --min-np 2 --blacklist-cooldown-range 60 120 -i /root/.ssh/id --no-stall-check python t.py",
        {"spec.entrypoint": {"script": "t.py"}, "spec.processesPerPod": 4},
        [
            "not carried over: line 1: --min-np (2): set spec.elastic.minReplicas, in pods",
            "--blacklist-cooldown-range (60 120)",
            "not needed: line 1: -i (/root/.ssh/id)",
            "--no-stall-check: set HOROVOD_STALL_CHECK_DISABLE to 1",
        ],
    ),
    "deepspeed": (
        "deepspeed --num_nodes 2 --num_gpus 4 --hostfile h --master_port 1 t.py --deepspeed ds.json",
        {"spec.replicas": 2, "spec.processesPerPod": 4, "spec.entrypoint.args": ["--deepspeed", "ds.json"]},
        ["--hostfile (h)", "not carried over: line 1: --local_rank"],
    ),
    "composer": (
        "composer -n 4 --world_size 8 --node_rank 1 --master_port 1 t.py --a",
        {"spec.replicas": 2, "spec.processesPerPod": 4, "spec.entrypoint": {"script": "t.py", "args": ["--a"]}},
        ["-n (4)", "--world_size (8)", "not needed: line 1: --node_rank (1)"],
    ),
    "composer's ranks": ("composer --world_size 4 -m t", {"spec.replicas": 1, "spec.processesPerPod": 4}, []),
    "deepspeed with the pods in a file": (
        "deepspeed --hostfile h t.py",
        {"spec.replicas": 1},
        ["not carried over: line 1: --hostfile h: the number of pods is in this file, which is not read"],
    ),
    "accelerate with the pods in a file": (
        "accelerate launch --config_file c.yaml t.py",
        {"spec.replicas": 1},
        ["--config_file c.yaml: the number of pods is in this file"],
    ),
    "deepspeed without --local_rank": ("deepspeed --no_local_rank t.py", {}, ["not needed: line 1: --no_local_rank"]),
    "elastic deepspeed": (
        "deepspeed --elastic_training --min_elastic_nodes 1 --max_elastic_nodes 3 t.py",
        {"spec.elastic": {"minReplicas": 1, "maxReplicas": 3}, "spec.replicas": 3},
        [],
    ),
    "a script": (
        "#!/bin/bash\n# a comment\nexport A=1\nN=2\ntorchrun --nproc-per-node $N \\\n  t.py --b ${B:-3} $@ &> log\n",
        {
            "spec.processesPerPod": 2,
            "spec.entrypoint.args": ["--b", "3"],
            f"{CONTAINER}.env": [{"name": "A", "value": "1"}],
        },
        ["line 3 A (1)"],
    ),
    "a variable that a condition sets": (
        "N=2\nif x; then\n  N=4\nfi\nexport N A\ntorchrun --nproc-per-node $N t.py",
        {"spec.processesPerPod": 2, f"{CONTAINER}.env": [{"name": "N", "value": "2"}]},
        [
            "not carried over: line 3 N (4): set inside a condition or loop",
            "in another form: line 5 N (2): env of the container",
            "not carried over: line 5 A: no value is known here",
        ],
    ),
    "what the agent sets": (
        "set -e\nexport MASTER_PORT=1234\ntorchrun --master_port $MASTER_PORT t.py",
        {f"{CONTAINER}.env": None},
        ["not needed: line 1 (set -e)", "not needed: line 2 MASTER_PORT (1234): the agent sets"],
    ),
    "an argument of the script with a default": (
        "torchrun --nproc-per-node ${2:-4} t.py",
        {"spec.processesPerPod": 4},
        [],
    ),
    "YAML in a here-document": (
        "#!/bin/sh\ncat > a.yaml <<E\nkind: Pod\nE\ntorchrun t.py",
        {"spec.entrypoint.script": "t.py"},
        [],
    ),
    "a variable that is nowhere": (
        "torchrun t.py --out $HOME/x",
        {"spec.template.spec.containers[0].command": ["sh", "-c", 'exec python3 -u t.py --out "$HOME/x"']},
        ["not carried over: line 1 ($HOME): is read by a shell of each rank, and has the pod's value"],
    ),
    "a variable in front": ("A=1 torchrun t.py", {f"{CONTAINER}.env": [{"name": "A", "value": "1"}]}, []),
    "numactl": (
        "numactl -N 0 torchrun t.py",
        {"spec.entrypoint": None, f"{CONTAINER}.command[0]": "sh"},
        ["a launcher that another program starts stays"],
    ),
}
KEPT = {
    "accelerate": (
        "uv run accelerate-launch t.py",
        "accelerate goes by flags of its own: in a job of several pods",
    ),
    "composer": ("numactl -N 0 composer t.py", "pass -n $PET_NPROC_PER_NODE --world_size $((WORLD_SIZE *"),
    "deepspeed": ("numactl -N 0 deepspeed t.py", "pass --no_ssh --hostfile FILE --node_rank $RANK"),
}
REFUSED = {
    "a number of ranks in a variable": (
        "torchrun --nproc-per-node $N t.py",
        "--nproc-per-node $N: the value can't be known",
    ),
    "a number of pods in a variable": ("torchrun --nnodes $N t.py", "--nnodes $N: the value can't be known here"),
    "GPUs that are nowhere": ("torchrun --nproc-per-node gpu t.py", "or the GPUs of each pod (--gpus N for a script"),
    "no script": ("torchrun --nproc-per-node 2", "torchrun starts no script: write it behind the flags"),
    "uneven ranks": ("accelerate launch --num_machines 2 --num_processes 3 t.py", "3 can't be divided by 2 pods"),
    "composer's uneven ranks": (
        "composer -n 4 --world_size 6 t.py",
        "--world_size 6 can't be divided by --nproc 4",
    ),
    "no ranks": ("torchrun --nproc-per-node=0 t.py", "line 1: --nproc-per-node 0: write 1 or more ranks"),
    "no pods": ("accelerate launch --num_machines 0 --num_processes 4 t.py", "--num_machines 0: write 1 or more pods"),
    "a range that falls": ("torchrun --nnodes=4:1 t.py", "--nnodes 4:1: write 1 or more pods, in MIN:MAX"),
    "TPUs": ("accelerate launch --tpu t.py", "--tpu: jobs run on GPUs or processors"),
    "an autotuner": ("deepspeed --autotuning run t.py", "run the autotuner by itself"),
    "two launchers": ("torchrun a.py\ntorchrun b.py", "lines 1, 2 start a launcher: one job is one training"),
    "a loop": (
        "for i in 1 2; do torchrun a.py $i; done",
        "line 1 starts a launcher inside a loop, condition or function",
    ),
    "an open quotation": ("torchrun 'a.py", "line 1: the quotation ' has no end"),
}


@pytest.mark.parametrize(("command", "fields", "texts"), CARRIED.values(), ids=CARRIED)
def test_flag_is_carried_or_noted(command: str, fields: dict[str, Any], texts: list[str]) -> None:
    draft = one(command, "run.sh", image=IMAGE, gpus=0)
    assert {path: at(draft.job, path) for path in fields} == fields
    for text in texts:
        assert text in notes(draft)


@pytest.mark.parametrize(("command", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_single_launch_is_refused(command: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        one(command, "run.sh", image=IMAGE)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("launcher", "flag"), [(name, flag) for name, flag in flags.known() if flag.how is not How.REFUSED]
)
def test_every_flag_of_the_table_is_noted(launcher: str, flag: flags.Flag) -> None:
    value = "" if flag.bare else "=2"
    script = "-- t" if flag.name in flags.AS_MODULE | flags.AS_COMMAND else "t.py"
    draft = one(f"{launcher} --{flag.name}{value} {script}", "run.sh", image=IMAGE, gpus=0)
    assert f"--{flag.name}" in notes(draft)


@pytest.mark.parametrize(
    "program",
    [
        "/opt/conda/bin/accelerate launch",
        "/opt/conda/bin/accelerate-launch",
        "python3.10 -m accelerate.commands.launch",
    ],
)
def test_accelerate_that_stays_is_the_one_of_the_file(program: str) -> None:
    draft = one(f"{program} --use_fsdp t.py", "run.sh", image=IMAGE, gpus=0)
    command = at(draft.job, f"{CONTAINER}.command")
    assert command[2].startswith(f"exec {program} --num_machines $WORLD_SIZE ")
    assert is_launcher(command), "else the agent starts one for each rank"


@pytest.mark.parametrize(("command", "text"), KEPT.values(), ids=KEPT)
def test_launcher_that_stays_and_has_flags_of_its_own_is_noted(command: str, text: str) -> None:
    assert text in notes(one(command, "run.sh", image=IMAGE))
    assert "goes by flags of its own" not in notes(one("numactl -N 0 torchrun t.py", "run.sh", image=IMAGE))


def test_flag_of_a_launcher_that_stays_is_not_called_left_out() -> None:
    draft = one("accelerate launch --use_deepspeed --zero_stage 3 --num_machines 2 t.py", "run.sh", image=IMAGE)
    assert "--zero_stage 3" in draft.job["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert "left out" not in notes(draft)
    assert "the number of pods is in this file" not in notes(draft)


def test_gpus_of_a_command_line_come_from_the_flag() -> None:
    draft = one("torchrun --nproc-per-node 8 t.py", "run.sh", image=IMAGE, gpus=8)
    assert at(draft.job, f"{CONTAINER}.resources.limits") == {"nvidia.com/gpu": 8}
    assert "processesPerPod" not in draft.job["spec"]
    assert "give --gpus N" in notes(one("torchrun t.py", "run.sh", image=IMAGE))


@pytest.mark.parametrize("value", ["gpu", "auto", "$N"])
def test_launcher_without_a_number_starts_a_rank_for_each_gpu(value: str) -> None:
    draft = one(f"torchrun --nproc-per-node={value} t.py", "run.sh", image=IMAGE, gpus=4)
    assert "processesPerPod" not in draft.job["spec"]


def test_missing_image_is_asked_for_with_its_flag() -> None:
    with pytest.raises(InputError, match=r"no container image: .* give --image"):
        one("torchrun t.py", "run.sh")


# text: (commands, values)
SHELL: dict[str, tuple[list[list[str]], dict[str, str]]] = {
    "a 'b c' \"d e\" f\\ g": ([["a", "b c", "d e", "f g"]], {}),
    "a # b\nc": ([["a"], ["c"]], {}),
    "a && b || c; d | e": ([["a"], ["b"], ["c"], ["d"], ["e"]], {}),
    "a \\\n  b": ([["a", "b"]], {}),
    "a > log 2>&1 < in b": ([["a", "b"]], {}),
    "a >'my log' b>c<d 2>>\"e\" -f": ([["a", "b", "-f"]], {}),
    "a <<EOF\nit's $X\nEOF\nb": ([["a"], ["b"]], {}),
    "a <<- 'E' > f; b<<F\n\tx(\n\tE\ny\nF\nc": ([["a"], ["b"], ["c"]], {}),
    "a ~/b ~ '~/c' d=~": ([["a", "$HOME/b", "$HOME", "~/c", "d=~"]], {}),
    "a <<< x\nb": ([["a"], ["b"]], {}),
    "a '<<E'\nb\nE": ([["a", "<<E"], ["b"], ["E"]], {}),
    "((i << 3))\nb": ([["i"], ["b"]], {}),
    "a $X \"$X\" '$X' \\$X": ([["a", "1", "2", "1 2", "$X", "$X"]], {"X": "1 2"}),
    "a ${X:-3} ${Y:-4} $Z": ([["a", "1", "4", "$Z"]], {"X": "1"}),
    "a $((X * 2)) $(date)": ([["a", "8", "$(date)"]], {"X": "4"}),
    "a $((${X} + $Y / 3 - 1)) $((X / Z)) $((2 ** 9))": (
        [["a", "5", "$((X / Z))", "$((2 ** 9))"]],
        {"X": "4", "Y": "8"},
    ),
    'a $EMPTY "" b': ([["a", "", "b"]], {"EMPTY": ""}),
    "if x; then\n y\nelse\n z\nfi\nw": ([["if", "x"], ["y"], ["z"], ["w"]], {}),
}


@pytest.mark.parametrize("text", SHELL)
def test_shell_text_is_read_as_a_shell_does(text: str) -> None:
    expected, values = SHELL[text]
    assert [shell.expand(step.tokens, values) for step in shell.commands(text)] == expected


@pytest.mark.parametrize("text", ["$((1if 2 else 3))", "$((1 and(2)))", "$((0x1for x in y))"])
def test_arithmetic_that_is_python_and_no_shell_is_not_calculated(text: str, recwarn: pytest.WarningsRecorder) -> None:
    (step,) = shell.commands(f"a {text}")
    assert shell.expand(step.tokens, {}) == ["a", text]
    assert recwarn.list == []


def test_redirections_and_lines_behind_a_document_are_known() -> None:
    first, second = shell.commands('a b <<E >"x y" 2>&1\nit\'s\nE\nc')
    assert (first.redirected, second.redirected) == ("<<E >x y 2>&1", "")
    assert second.line == 4


def test_commands_know_their_line_and_what_is_around_them() -> None:
    steps = shell.commands("a\nfor x in 1; do\n  b | c\ndone\n(d)\ne")
    assert [(step.tokens[0].text, step.line, step.depth) for step in steps] == [
        ("a", 1, 0),
        ("for", 2, 1),
        ("b", 3, 1),
        ("c", 3, 1),
        ("d", 5, 1),
        ("e", 6, 0),
    ]
    assert [step.piped for step in steps] == [False, False, True, True, False, False]


RANK_EACH = "spec.processesPerPod is 1; torchrun starts a rank for each processor of a node without GPUs"


@pytest.mark.parametrize(
    ("flags", "text"), [([], RANK_EACH), (["--nproc-per-node=cpu"], "(cpu): nothing counts processors here")]
)
def test_rank_for_each_processor_is_noted(flags: list[str], text: str) -> None:
    command = {"spec.pytorchReplicaSpecs.Master.template.spec.containers[0].command": ["torchrun", *flags, "t.py"]}
    assert text in notes(one(changed(PYTORCHJOB, {**command, "spec.pytorchReplicaSpecs.Worker": None})))
