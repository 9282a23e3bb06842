"""Recognises what a file holds, and converts each job in it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtj.convert import appwrapper, meta, pytorchjob, slurm, torchrun, trainjob
from dtj.convert.fields import Draft, leaves, shown
from dtj.errors import InputError
from dtj.jobfile import parse_documents
from dtj_contract import names
from dtj_core import api
from dtj_core.api.launcher_flags import How
from dtj_core.plan.model import Object

HELM = re.compile(r"{{.*?}}", re.DOTALL)
PLACEHOLDER = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
ANNOUNCED = (
    "write a PyTorchJob (kubeflow.org/v1), a TrainJob with its runtime (trainer.kubeflow.org/v1alpha1),"
    " an sbatch script, or a torchrun command line"
)
OLD = {
    "TFJob": "TensorFlow",
    "MPIJob": "MPI",
    "XGBoostJob": "XGBoost",
    "PaddleJob": "PaddlePaddle",
    "JAXJob": "JAX",
    "MXJob": "MXNet",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Facts that a job file of another system may lack."""

    name: str | None = None
    image: str | None = None
    command: str | None = None
    """Command line of the image, or of the training."""
    gpus: int | None = None
    runtimes: tuple[Object, ...] = ()

    @property
    def command_tokens(self) -> list[str] | None:
        """The command, split as a shell would. Raises InputError if it can't be split."""
        try:
            return shlex.split(self.command) if self.command else None
        except ValueError as error:
            raise InputError(f"--command: {error}") from error


def convert(text: str, file_name: str, options: Options) -> list[Draft]:
    """Returns a draft for each job in a text. `file_name` without its folder and ending may become a job's name.

    Raises InputError if there is no job, or one that can't be converted.
    """
    if not text.strip():
        raise InputError(f"empty: {ANNOUNCED}")
    stem = re.sub(r"\.[^.]*$", "", file_name)
    if slurm.is_script(text):
        draft = slurm.convert(text, options.image, options.name or stem, options.command_tokens, options.gpus)
        if options.name:
            draft.put("metadata.name", options.name)
        return [checked(draft)]
    if _looks_like_yaml(text) and not text.startswith("#!"):
        return _from_yaml(text, options)
    if torchrun.is_command(text):
        if options.command:
            raise InputError("--command: the file has a launcher's command already: change it there")
        draft = Draft()
        name = options.name or meta.valid_name(stem, draft, "the name of the file")
        converted = torchrun.convert(text, options.image, name, options.gpus)
        converted.notes[:0] = draft.notes
        return [checked(converted)]
    if text.startswith("#!") or file_name.endswith((".sh", ".sbatch", ".slurm")):
        raise InputError(f"a script without #SBATCH lines, and without a launcher that is known: {ANNOUNCED}")
    return _from_yaml(text, options)


def checked(draft: Draft) -> Draft:
    """Returns the draft. Raises InputError if the API server would reject its job."""
    order = [info.alias or name for name, info in api.Spec.model_fields.items()]
    draft.job["spec"] = dict(sorted(draft.job["spec"].items(), key=lambda item: order.index(item[0])))
    violations = api.violations(draft.job)
    if violations:
        found = "; ".join(str(one).removeprefix("object: ") for one in violations)
        remedy = ": give another with --name" if "metadata.name must" in found else ""
        raise InputError(f"the converted job is not valid: {found}{remedy}")
    spec = api.validate(draft.job).spec
    if (accelerator := spec.undecided_accelerator) is not None:
        draft.put("spec.processesPerPod", spec.processes)
        draft.note(
            How.NOT_CARRIED,
            accelerator,
            "set spec.backend and spec.processesPerPod: neither has a default for this accelerator",
        )
    return draft


def runtimes(text: str) -> tuple[Object, ...]:
    """Returns the training runtimes of a YAML text. Raises InputError if there is none."""
    found = tuple(one for one in objects(text) if one.get("kind") in trainjob.RUNTIME_KINDS)
    if not found:
        raise InputError(f"holds no {' or '.join(trainjob.RUNTIME_KINDS)}: give the file of kubectl get -o yaml")
    return found


def objects(text: str) -> list[Object]:
    """Returns the Kubernetes objects of a YAML text, those of a List too. Raises InputError if it is no such text."""
    try:
        documents = parse_documents(text)
    except InputError as error:
        if template := HELM.search(text):
            line = 1 + text.count("\n", 0, template.start())
            raise InputError(_rendered(f"line {line}", template[0])) from error
        raise
    found: list[Object] = []
    for document in documents:
        if not isinstance(document, dict):
            raise InputError(f"not a job but {type(document).__name__}: {ANNOUNCED}")
        items = document.get("items")
        is_list = str(document.get("kind")).endswith("List") and isinstance(items, list)
        found.extend(one for one in items if isinstance(one, dict)) if is_list and items else found.append(document)
    return found


def _looks_like_yaml(text: str) -> bool:
    return text.lstrip().startswith("{") or bool(re.search(r"(?m)^[\s\"'{-]*(?:kind|apiVersion)[\"']?\s*:", text))


def _from_yaml(text: str, options: Options) -> list[Draft]:
    found, wrappers = appwrapper.unwrapped(objects(text))
    if options.image or options.gpus is not None:
        raise InputError(
            "--image and --gpus are for scripts and command lines: write them into the container of the file"
        )
    held = (*options.runtimes, *(one for one in found if one.get("kind") in trainjob.RUNTIME_KINDS))
    drafts: list[Draft] = []
    passed: list[Object] = []
    jobs = [one for one in found if one.get("kind") in (pytorchjob.KIND, trainjob.KIND)]
    if options.name and len(jobs) > 1:
        raise InputError(f"--name: the file holds {len(jobs)} jobs, which can't have one name")
    for one in found:
        kind = one.get("kind")
        if kind in (pytorchjob.KIND, trainjob.KIND):
            where = f"{kind} {(one.get('metadata') or {}).get('name', '')}: " if len(jobs) > 1 else ""
            drafts.append(_one(one, held, options, where))
        elif kind not in trainjob.RUNTIME_KINDS:
            passed.append(one)
    if not drafts:
        raise InputError(_no_job(found))
    for one in passed:
        what = f"{one.get('kind')} {(one.get('metadata') or {}).get('name', '')}".strip()
        drafts[0].note(How.NOT_CARRIED, what, "no training job: apply it by itself")
    drafts[0].notes[:0] = wrappers.notes
    return drafts


def _one(source: Object, held: Sequence[Object], options: Options, where: str) -> Draft:
    versions = pytorchjob.API_VERSIONS if source["kind"] == pytorchjob.KIND else trainjob.API_VERSIONS
    if source.get("apiVersion") not in versions:
        raise InputError(f"{where}apiVersion: {source.get('apiVersion')} is not converted: write {versions[0]}")
    try:
        for each in (source, *(held if source["kind"] == trainjob.KIND else ())):
            _no_placeholder(each)
        if source["kind"] == pytorchjob.KIND:
            draft = pytorchjob.convert(source, options.name, options.command_tokens)
        else:
            draft = trainjob.convert(source, held, options.name, options.command_tokens)
        return checked(draft)
    except InputError as error:
        raise InputError(f"{where}{error}") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}a field has another type than {source['apiVersion']} allows ({error}): check the file with"
            " kubectl apply --dry-run=server, and convert it then"
        ) from error


def _no_placeholder(source: Object) -> None:
    """Raises InputError for a value that Helm or envsubst fills in. A command's own `$NAME` is the shell's."""
    for path, value in leaves(source):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (template := HELM.search(text)):
                raise InputError(_rendered(path, template[0]))
        if isinstance(value, str) and (match := PLACEHOLDER.fullmatch(value)):
            raise InputError(
                f"{path}: ${match[1] or match[2]} is filled in by envsubst or a script: convert the result, with"
                " envsubst < FILE | dtj convert -"
            )


def _rendered(where: str, template: str) -> str:
    return (
        f"{where}: {shown(template)} is a template of Helm or another tool: convert what it renders, with"
        " helm template CHART | dtj convert -"
    )


def _no_job(found: Sequence[Any]) -> str:
    if not found:
        return f"empty: {ANNOUNCED}"
    if any(not one.get("kind") for one in found):
        return f"an object without kind: {ANNOUNCED}"
    kinds = [f"{one.get('apiVersion')}, {one.get('kind')}" for one in found]
    if all(one.get("kind") == names.KIND for one in found):
        return f"already a {names.KIND}: apply it as it is"
    for one in found:
        if (other := OLD.get(str(one.get("kind")))) is not None:
            return f"{one['kind']} starts {other}, not torch.distributed, and can't be converted: {ANNOUNCED}"
    if all(one.get("kind") in trainjob.RUNTIME_KINDS for one in found):
        return "a runtime without a TrainJob: convert the TrainJob, with this file as --runtime"
    return f"no training job but {'; '.join(kinds[:3])}: {ANNOUNCED}"
