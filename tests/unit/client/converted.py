"""Helpers of the tests of dtj convert: short inputs, and a search for what a conversion lost without a note."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import yaml

from dtj.convert import shell
from dtj.convert.documents import Options, convert
from dtj.convert.fields import Draft, leaves

IMAGE = "registry.example/train:1"
PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist, namespace: team}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &template
        spec:
          containers:
            - name: pytorch
              image: registry.example/train:1
              command: [python3, /app/train.py, --epochs, "3"]
    Worker:
      replicas: 3
      template: *template
"""
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec:
              template:
                spec:
                  containers: [{name: node, image: registry.example/base:1, env: [{name: A, value: runtime}]}]
"""
TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: mnist}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 2, command: [torchrun, train.py]}
"""


def parsed(text: str) -> Any:
    """Returns a YAML document that shares nothing with an anchor of its own."""
    return copy.deepcopy(yaml.safe_load(text))


def changed(text: str, changes: dict[str, Any]) -> str:
    """Returns a YAML document with other values at dotted paths; None removes a field."""
    document = yaml.safe_load(yaml.dump(yaml.safe_load(text), Dumper=_NoAliases))
    for path, value in changes.items():
        *parents, last = re.findall(r"[^.\[\]]+", path)
        at = document
        for name in parents:
            at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
        if isinstance(at, list):
            at[int(last)] = value
        elif value is None:
            at.pop(last)
        else:
            at[last] = value
    return yaml.dump(document, Dumper=_NoAliases, sort_keys=False)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def one(text: str, file_name: str = "job.yaml", **options: Any) -> Draft:
    """Returns the only job of a text."""
    (draft,) = convert(text, file_name, Options(**options))
    return draft


def notes(draft: Draft) -> str:
    """Returns all notes, each on a line."""
    return "\n".join(map(str, draft.notes))


def at(job: dict[str, Any], path: str) -> Any:
    """Returns the value at a dotted path; None if there is none."""
    value: Any = job
    for name in re.findall(r"[^.\[\]]+", path):
        if value is None:
            return None
        value = value[int(name)] if isinstance(value, list) else value.get(name)
    return value


def lost(source: dict[str, Any], draft: Draft) -> list[str]:
    """Returns the fields whose value is in no field of the job, and which no note names.

    Looks at input and output alone: the tables of the converter have no part in it.
    """
    text = _bare(" ".join(_atoms(draft.job)))
    if "entrypoint" in draft.job["spec"]:
        text += " python3 -u -m"
    marked = [note.path.rpartition(": spec")[2] if ": spec" in note.path else note.path for note in draft.notes]
    marked = [
        path if path.startswith(("metadata", "status")) else f"spec{path}".replace("specspec", "spec")
        for path in marked
    ]
    mentioned = _bare(notes(draft))
    found = []
    for path, value in leaves(source):
        if path in ("apiVersion", "kind") or value in (None, {}, []):
            continue
        twin = path.replace("Specs.Worker.template", "Specs.Master.template")  # equal, or refused
        if any(one == place or one.startswith((f"{place}.", f"{place}[")) for place in marked for one in (path, twin)):
            continue
        for atom in _atoms(value):
            pieces = [piece for piece in re.split(r"[\s;&|=]+", _bare(atom)) if piece not in ("exec", "cd", "export")]
            found += [f"{path}: {piece}" for piece in pieces if piece not in text and piece not in mentioned]
    return found


def _bare(text: str) -> str:
    """Returns a text without quotes, and without the ways to write a variable."""
    return re.sub(r"[$(){}\"']", "", text)


def lost_lines(script: str, draft: Draft) -> list[str]:
    """Returns the directives and commands of a script whose line no note names."""
    named = {int(number) for note in draft.notes for number in re.findall(r"^line (\d+)", note.path)}
    directives = [at for at, line in enumerate(script.splitlines(), 1) if re.match(r"#SBATCH\s+\S", line)]
    steps = [step.line for step in shell.commands(script)]
    return [f"line {number}" for number in (*directives, *steps) if number not in named]


def _atoms(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _atoms(item)
    elif isinstance(value, list):
        for item in value:
            yield from _atoms(item)
    elif value is not None:
        yield str(value)
