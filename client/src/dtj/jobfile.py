"""Reads a person's job file, as strictly as the API server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from dtj.errors import InputError
from dtj.field_hints import explain
from dtj_contract import names
from dtj_core import api
from dtj_core.plan.model import Object


class _Loader(yaml.SafeLoader):
    """Reads a date as text, as kubectl does."""


_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path: str) -> list[Object]:
    """Returns the jobs of a YAML file, or of standard input if `path` is `-`.

    Raises InputError. `check` is what finds unknown fields.
    """
    documents = read_documents(path)
    for document in documents:
        _is_job(document, path)
    if not documents:
        raise InputError(f"{path}: empty; it must hold a {names.KIND}")
    return documents


def read_documents(path: str) -> list[Any]:
    """Returns the documents of a YAML file, or of standard input if `path` is `-`. Raises InputError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        return parse_documents(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = 1 + bytes(error.object)[: error.start].count(b"\n")
        raise InputError(f"{path}: not valid YAML: line {line} is not UTF-8") from error


def parse_documents(text: str) -> list[Any]:
    """Returns the documents of a YAML text, as the API server reads them. Raises InputError if it is no YAML."""
    try:
        return [_as_stored(document) for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {_place(error)}") from error
    except RecursionError as error:
        raise InputError("not valid YAML: nested too deeply, or an alias that holds itself: write it out") from error
    except (ValueError, LookupError, AttributeError) as error:  # PyYAML's, for a value that its tag does not allow
        raise InputError(f"not valid YAML: a value is none of its type ({error}): write it in quotes") from error


def the_only(documents: list[Any], path: str) -> Object:
    """Returns the job that is the only one of the documents. Raises InputError."""
    jobs: list[Object] = documents
    for document in documents:
        _is_job(document, path)
    if not jobs:
        raise InputError(f"{path}: empty; it must hold a {names.KIND}")
    if len(jobs) > 1:
        raise InputError(f"{path}: holds {len(jobs)} jobs; dtj run takes one: put the others into separate files")
    return jobs[0]


def check(job: Object, path: str) -> api.DistributedTrainingJob:
    """Returns the job as the API server would accept it.

    Raises InputError with every field that the server would reject.
    """
    try:
        return api.validate(job)
    except api.InvalidJob as error:
        raise InputError("\n".join(f"{path}: {explain(violation, job)}" for violation in error.violations)) from error


def _as_stored(value: Any) -> Any:
    """Returns `value` with its texts as the API server reads them from JSON.

    PyYAML reads the two escapes of a surrogate pair as two characters. The pair is one character; an
    unpaired surrogate becomes U+FFFD.
    """
    if isinstance(value, dict):
        return {_as_stored(key): _as_stored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _place(error: yaml.YAMLError) -> str:
    r"""Returns text such as `line 4, column 1: found character '\t' that cannot start any token`."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = " ".join(str(getattr(error, "problem", None) or getattr(error, "context", None)).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def kind_of(document: Any) -> str:
    """Returns API version and kind of a document, or the type of one that is no object."""
    if not isinstance(document, dict):
        return type(document).__name__
    return f"{document.get('apiVersion')}, {document.get('kind')}"


def _is_job(document: Any, path: str) -> None:
    kind = kind_of(document)
    if kind == f"{names.API_VERSION}, {names.RUNTIME_KIND}":
        raise InputError(f"{path}: holds a {names.RUNTIME_KIND}, which is of the whole cluster: use kubectl apply -f")
    if kind != f"{names.API_VERSION}, {names.KIND}":
        raise InputError(f"{path}: not a job but {kind}; write apiVersion: {names.API_VERSION} and kind: {names.KIND}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise InputError(f"{path}: metadata.name: required")
