"""Reads a job with its runtime, for a run without a cluster to look the runtime up in."""

from __future__ import annotations

from typing import Any

from dtj import jobfile
from dtj.errors import InputError
from dtj_contract import names
from dtj_core import api
from dtj_core.api import runtime
from dtj_core.plan.model import Object

KIND = f"{names.API_VERSION}, {names.RUNTIME_KIND}"


def load_one(path: str, runtime_path: str | None = None) -> Object:
    """Returns the only job of a file, with what its runtime gives in its spec.

    The runtime is in the same file, or in that of `runtime_path`. Raises InputError.
    """
    documents = jobfile.read_documents(path)
    found = {each["metadata"]["name"]: (each, path) for each in documents if is_runtime(each, path)}
    job = jobfile.the_only([each for each in documents if jobfile.kind_of(each) != KIND], path)
    if runtime_path is not None:
        others = jobfile.read_documents(runtime_path)
        for each in others:
            if not is_runtime(each, runtime_path):
                kind = jobfile.kind_of(each)
                raise InputError(f"{runtime_path}: not a runtime but {kind}; write kind: {names.RUNTIME_KIND}")
        found |= {each["metadata"]["name"]: (each, runtime_path) for each in others}
    jobfile.check(job, path)
    reference = job["spec"].get(runtime.REF)
    if not reference:
        if runtime_path is not None:
            raise InputError(f"{path}: --runtime: the job names no runtime: write spec.runtimeRef: {{name: NAME}}")
        return job
    if reference["name"] not in found:
        where = path if runtime_path is None else f"{path} and {runtime_path}"
        raise InputError(
            f"{path}: spec.runtimeRef.name: no {names.RUNTIME_KIND} {reference['name']} in {where}: add it to the file,"
            " or give its file with --runtime"
        )
    given, origin = found[reference["name"]]
    try:
        runtime.validate(given)
    except api.InvalidRuntime as error:
        raise InputError("\n".join(f"{origin}: {violation}" for violation in error.violations)) from error
    return {**job, "spec": runtime.merge(given["spec"], job["spec"])}


def is_runtime(document: Any, path: str) -> bool:
    """Returns whether the document is a runtime. Raises InputError if it is one without a name."""
    if jobfile.kind_of(document) != KIND:
        return False
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise InputError(f"{path}: metadata.name of the {names.RUNTIME_KIND}: required")
    return True
