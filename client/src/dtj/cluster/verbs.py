"""`dtj submit | get | delete`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from dtj import durations, jobfile, yaml_text
from dtj.cluster.client import TABLE, Cluster, job_path
from dtj.errors import InputError, JobNotFound, WaitTimeout
from dtj_contract import names
from dtj_core.plan.model import Object

QUALIFIED = f"{names.SINGULAR}.{names.GROUP}"
# Between two looks for the pods of a deleted job; a watch would not report all of them.
POLL_SECONDS = 0.5


def connect(flags: argparse.Namespace) -> Cluster:
    """Returns the cluster that the flags select."""
    return Cluster(kubeconfig=flags.kubeconfig, context=flags.context, namespace=flags.namespace)


def submit(flags: argparse.Namespace) -> int:
    """Applies every job of the file on the server, if all of them are valid. Raises DtjError."""
    jobs = jobfile.load(flags.filename)
    for job in jobs:
        jobfile.check(job, flags.filename)
    cluster = connect(flags)
    for job in jobs:
        written = job["metadata"].get("namespace")
        if cluster.given_namespace and written and written != cluster.given_namespace:
            raise InputError(f"metadata.namespace is {written}, -n {cluster.given_namespace}: omit one of the two")
        namespace = written or cluster.namespace
        before = _resource_version(cluster, namespace, job["metadata"]["name"])
        stored, new = cluster.apply(job, namespace, force=flags.force_conflicts)
        verb = "created" if new else "unchanged" if stored["metadata"]["resourceVersion"] == before else "configured"
        name = f"{QUALIFIED}/{stored['metadata']['name']}"
        print(
            _dump(stored, flags.output)
            if flags.output in ("json", "yaml")
            else name
            if flags.output
            else f"{name} {verb}"
        )
    return 0


def get(flags: argparse.Namespace) -> int:
    """Prints one job, the jobs of a namespace, or (-A) all jobs. Raises DtjError."""
    cluster = connect(flags)
    if flags.name and flags.all_namespaces:
        raise InputError("a name and -A: omit one of the two; a name identifies one job of one namespace")
    path = job_path(None if flags.all_namespaces else cluster.namespace, flags.name)
    if flags.output in ("json", "yaml"):
        print(_dump(cluster.json(path), flags.output))
        return 0
    # The API server renders the table, so its columns are kubectl's with any version of the CRD.
    table = cluster.json(path, accept=TABLE)
    rows = table.get("rows") or []
    if flags.output == "name":
        for row in rows:
            print(f"{QUALIFIED}/{row['object']['metadata']['name']}")
    elif rows:
        for line in columns(table, wide=flags.output == "wide", namespaces=flags.all_namespaces):
            print(line)
    else:
        print(
            "No resources found" + ("" if flags.all_namespaces else f" in {cluster.namespace} namespace."),
            file=sys.stderr,
        )
    return 0


def delete(flags: argparse.Namespace) -> int:
    """Deletes a job, and waits until it and its pods are gone. Raises DtjError."""
    limit = durations.parse(flags.timeout, "--timeout") if flags.timeout else float("inf")
    cluster = connect(flags)
    cluster.delete(flags.name)
    print(f'{QUALIFIED} "{flags.name}" deleted from {cluster.namespace} namespace')
    deadline = time.monotonic() + limit
    while flags.wait and _remains(cluster, flags.name):
        if time.monotonic() > deadline:
            look = f"kubectl get pods -l {selector(flags.name)}"
            raise WaitTimeout(f"{flags.name} or its pods still exist after {flags.timeout}; {look}")
        time.sleep(POLL_SECONDS)
    return 0


def selector(name: str) -> str:
    """Returns the label selector of a job's pods."""
    return f"{names.LABEL_JOB}={name}"


def pods(cluster: Cluster, name: str) -> list[Object]:
    """Returns the job's pods, by ordinal."""
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    found: list[Object] = cluster.json(path, {"labelSelector": selector(name)})["items"]
    return sorted(found, key=lambda pod: int(pod["metadata"]["labels"].get(names.LABEL_POD_INDEX, 0)))


def columns(table: Object, *, wide: bool, namespaces: bool) -> list[str]:
    """Formats a Table of the API server as kubectl does.

    Cells are left-aligned, with three spaces between columns.
    """
    shown = [at for at, column in enumerate(table["columnDefinitions"]) if wide or not column.get("priority")]
    lines = [[table["columnDefinitions"][at]["name"].upper() for at in shown]]
    lines += [["" if row["cells"][at] is None else str(row["cells"][at]) for at in shown] for row in table["rows"]]
    if namespaces:
        owners = ["NAMESPACE", *(row["object"]["metadata"]["namespace"] for row in table["rows"])]
        lines = [[owner, *line] for owner, line in zip(owners, lines, strict=True)]
    return _align(lines)


def _align(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _dump(value: Object, form: str) -> str:
    return json.dumps(value, indent=4) if form == "json" else yaml_text.dump(value).rstrip()


def _resource_version(cluster: Cluster, namespace: str, name: str) -> str | None:
    try:
        found: str = cluster.json(job_path(namespace, name))["metadata"]["resourceVersion"]
    except JobNotFound:
        return None
    return found


def _remains(cluster: Cluster, name: str) -> bool:
    try:
        cluster.get(name)
    except JobNotFound:
        return bool(pods(cluster, name))
    return True
