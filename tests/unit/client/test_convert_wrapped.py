"""`dtj convert` of jobs inside of something else: an AppWrapper, a container program, an outer script."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dtj.convert.documents import Options, convert
from dtj.errors import InputError
from tests.unit.client.converted import IMAGE, PYTORCHJOB, at, changed, notes, one, parsed

CONTAINER = "spec.template.spec.containers[0]"
WORKERS = "spec.pytorchReplicaSpecs.Worker.template.spec.containers"
WRAPPER = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {
        "name": "wrapped",
        "namespace": "outer",
        "labels": {"kueue.x-k8s.io/queue-name": "research", "team": "a"},
        "annotations": {"workload.codeflare.dev.appwrapper/retryLimit": "3"},
    },
    "spec": {"suspend": True, "managedBy": "x"},
}


def wrapper(*templates: Any) -> str:
    """Returns an AppWrapper around objects."""
    components = [{"podSets": [{"replicas": 1, "path": "p"}], "template": one} for one in templates]
    return yaml.safe_dump({**WRAPPER, "spec": {**WRAPPER["spec"], "components": components}})  # type: ignore[dict-item]


def sbatch(line: str, *directives: str) -> str:
    """Returns an sbatch script for two nodes with four GPUs each."""
    return "\n".join(["#!/bin/bash", "#SBATCH -N 2 --gpus-per-node=4", *(f"#SBATCH {one}" for one in directives), line])


def test_job_is_taken_out_of_an_appwrapper() -> None:
    job = parsed(PYTORCHJOB)
    del job["metadata"]["namespace"]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    draft = one(wrapper(job, service))
    assert draft.job["metadata"] == {"name": "mnist", "namespace": "outer"}
    assert draft.job["spec"]["queueName"] == "research"
    report = notes(draft)
    for text in (
        "not needed: AppWrapper wrapped: metadata.name (wrapped)",
        "in another form: AppWrapper wrapped: metadata.labels.kueue.x-k8s.io/queue-name (research): spec.queueName",
        "not carried over: AppWrapper wrapped: metadata.labels: no AppWrapper is left: write it on the job",
        "AppWrapper wrapped: metadata.annotations.workload.codeflare.dev.appwrapper/retryLimit (3): the agents and",
        "not needed: AppWrapper wrapped: spec.components[0].podSets: Kueue counts the pods",
        "not needed: AppWrapper wrapped: spec.suspend (true)",
        "not carried over: AppWrapper wrapped: spec.managedBy (x)",
        "not carried over: Service s: no training job",
    ):
        assert text in report, report
    assert "unknown" not in report


def test_job_in_an_appwrapper_keeps_its_own_namespace_and_queue() -> None:
    job = parsed(changed(PYTORCHJOB, {"metadata.labels": {"kueue.x-k8s.io/queue-name": "own"}}))
    draft = one(wrapper(job))
    assert draft.job["metadata"] == {"name": "mnist", "namespace": "team"}
    assert draft.job["spec"]["queueName"] == "own"


@pytest.mark.parametrize("components", [None, [], "x", [1], [{}], [{"template": 1}]])
def test_appwrapper_without_a_job_is_refused(components: Any) -> None:
    text = yaml.safe_dump({**WRAPPER, "spec": {"components": components}})
    with pytest.raises(InputError, match=r"no training job|empty"):
        convert(text, "job.yaml", Options())


def test_job_of_shifter_runs_without_it() -> None:
    line = "srun -u shifter -V /a:/data --module=gpu --image=docker:team/x:1 bash -c 'python train.py $SLURM_PROCID'"
    draft = one(sbatch(line, "--ntasks-per-node=4"), "job.sbatch")
    assert draft.job["spec"]["image"] == "team/x:1"
    assert at(draft.job, f"{CONTAINER}.command") == ["bash", "-c", "python train.py $RANK"]
    report = notes(draft)
    assert "not carried over: line 4 -V (/a:/data): write volumes and volumeMounts in spec.template" in report
    assert "not carried over: line 4 --module (gpu): the image holds what the module adds" in report
    assert "in another form: line 4 --image (docker:team/x:1): spec.image" in report


def test_shifter_takes_the_image_of_the_directive() -> None:
    draft = one(sbatch("srun shifter torchrun train.py", "--image=team/x:2"), "job.sbatch")
    assert draft.job["spec"]["image"] == "team/x:2"
    assert draft.job["spec"]["entrypoint"] == {"script": "train.py"}
    assert "not needed: line 4 shifter: the pod is the container" in notes(draft)


def test_wrapper_program_of_a_site_is_taken_out() -> None:
    draft = one(sbatch("srun apptainer_wrapper exec bash -c 'torchrun train.py'"), "job.sbatch", image=IMAGE)
    assert draft.job["spec"]["entrypoint"] == {"script": "train.py"}


def test_script_that_submits_another_is_refused() -> None:
    text = "#!/bin/bash\nset -e\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun train.py\nEOF\n"
    with pytest.raises(InputError, match="line 3 submits another script with sbatch: convert that script"):
        one(text, "job.sh", image=IMAGE)


def test_check_of_the_nodes_is_no_training() -> None:
    lines = "srun bash -c 'python -c \"import torch\"'\nsrun bash -c '$LAUNCHER train.py'"
    draft = one(sbatch(f"export LAUNCHER='torchrun --nnodes 2'\n{lines}"), "job.sbatch", image=IMAGE)
    assert draft.job["spec"]["entrypoint"] == {"script": "train.py"}
    assert "not carried over: line 4 (srun bash -c python -c" in notes(draft)


def test_object_without_kind_is_refused() -> None:
    with pytest.raises(InputError, match="an object without kind: write a PyTorchJob"):
        convert("metadata: {name: x}\nkind:\nspec: {}", "job.yaml", Options())


def test_old_spelling_of_an_option_of_srun_is_known() -> None:
    assert "not needed: line 3 srun --cpu-bind (v)" in notes(
        one(sbatch("srun --cpu_bind=v torchrun train.py"), "job.sbatch", image=IMAGE)
    )


def test_missing_number_of_nodes_is_noted() -> None:
    draft = one("#!/bin/bash\n#SBATCH --gpus-per-node=4\nsrun torchrun train.py", "job.sbatch", image=IMAGE)
    assert "in another form: --nodes: spec.replicas is 1: no directive names the nodes" in notes(draft)
    assert "no directive names" not in notes(one(sbatch("srun torchrun train.py"), "job.sbatch", image=IMAGE))


@pytest.mark.parametrize("given", ['"$@"', "$*", "${@}"])
def test_arguments_of_the_script_are_noted(given: str) -> None:
    for text in (sbatch(f"srun torchrun train.py --a {given}"), f"torchrun --nnodes=2 train.py --a {given}"):
        draft = one(text, "job.sh", image=IMAGE)
        assert draft.job["spec"]["entrypoint"] == {"script": "train.py", "args": ["--a"]}
        assert "($@): the arguments that you give the script are not in the file" in notes(draft)


def test_variable_that_reads_a_label_of_another_system_is_noted() -> None:
    path = "metadata.labels['training.kubeflow.org/replica-index']"
    env = [
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    container = {"name": "pytorch", "image": IMAGE, "command": ["python3", "a.py"], "env": env}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container]}}
    changes = {"spec.pytorchReplicaSpecs.Master": None, "spec.pytorchReplicaSpecs.Worker.template": template}
    report = notes(one(changed(PYTORCHJOB, changes)))
    assert f"not carried over: {WORKERS}[0].env[0] ({path}): the pods have it from another system" in report
    assert "env[1]" not in report
    assert "env[2]" not in report


def test_resource_without_an_amount_is_left_out_and_noted() -> None:
    container = {
        "name": "pytorch",
        "image": IMAGE,
        "command": ["python3", "a.py"],
        "resources": {"limits": {"nvidia.com/gpu": None, "cpu": 1}, "requests": None},
    }
    draft = one(changed(PYTORCHJOB, {"spec.pytorchReplicaSpecs.Master": None, WORKERS: [container]}))
    assert at(draft.job, f"{CONTAINER}.resources.limits") == {"cpu": 1}
    assert f"not carried over: {WORKERS}[0].resources.limits.nvidia.com/gpu: no amount is in the file" in notes(draft)


def test_device_without_a_limit_gets_one() -> None:
    container = {
        "name": "pytorch",
        "image": IMAGE,
        "command": ["python3", "a.py"],
        "resources": {"requests": {"nvidia.com/gpu": "2", "cpu": 1}},
    }
    draft = one(changed(PYTORCHJOB, {"spec.pytorchReplicaSpecs.Master": None, WORKERS: [container]}))
    assert at(draft.job, f"{CONTAINER}.resources") == {
        "requests": {"nvidia.com/gpu": "2", "cpu": 1},
        "limits": {"nvidia.com/gpu": "2"},
    }
    assert f"in another form: {WORKERS}[0].resources.requests.nvidia.com/gpu (2): the same in limits" in notes(draft)


def test_missing_image_is_named_by_its_place() -> None:
    containers = [{"name": "pytorch", "image": None, "command": ["python3", "a.py"]}]
    with pytest.raises(InputError, match=r"Worker.template.spec.containers\[0\].image: required: write the image"):
        one(changed(PYTORCHJOB, {"spec.pytorchReplicaSpecs.Master": None, WORKERS: containers}))


@pytest.mark.parametrize("prefix", ["uv run --no-sync", "poetry run", "conda run -n torch"])
def test_launcher_behind_an_environment_stays_with_it(prefix: str) -> None:
    draft = one(sbatch(f"srun {prefix} torchrun --nnodes 2 --rdzv_endpoint=$(hostname):1 t.py"), "a.sh", image=IMAGE)
    shell, _, text = at(draft.job, f"{CONTAINER}.command")
    assert shell == "sh"
    assert text.startswith("export PET_NNODES=$WORLD_SIZE ")
    assert text.endswith(f" exec {prefix} torchrun t.py")


@pytest.mark.parametrize("command", ["uv run python train.py", "uv run train.py", "conda run -n torch python -m train"])
def test_python_of_an_environment_trains(command: str) -> None:
    draft = one(sbatch(f"uv sync\nsrun {command}", "--ntasks-per-node=4"), "a.sh", image=IMAGE)
    assert at(draft.job, f"{CONTAINER}.command") == command.split()
    assert draft.job["spec"]["replicas"] == 2
    assert "not carried over: line 4 (uv sync)" in notes(draft)
