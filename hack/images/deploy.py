"""`make deploy`: installs the chart with this tree's images into the cluster of `make cluster-up`. Idempotent."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

from hack.cluster import kind
from hack.cluster.shell import ProvisionError, run
from hack.images import build
from hack.images.build import log
from hack.images.recipes import ROOT

RELEASE = "dtj"
NAMESPACE = "dtj-system"
SELECTOR = "app.kubernetes.io/name=dtj-operator"
READY_SECONDS = 120.0
# Every worker unpacks torch's 2.9 GB of layers at the same time.
PULL_TIMEOUT = 1200


def deploy() -> None:
    """Raises ProvisionError with the cluster's pods, events and logs if the operator is not ready in time."""
    began = time.monotonic()
    if not kind.kubeconfig().exists():
        raise ProvisionError(f"there is no cluster {kind.name()}: run `make cluster-up` first")
    references = build.ensure()
    with ThreadPoolExecutor() as pool:
        pulls = [pool.submit(_pull, node, [*references.values(), build.EXAMPLES_IMAGE]) for node in kind.nodes()[1:]]
        _install(references["operator"])
        for pull in pulls:
            pull.result()
    log(f"the operator is ready after {time.monotonic() - began:.1f} s")


def _install(reference: str) -> None:
    # The operator must run under the strictest of the pod security standards.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    kind.kubectl("apply", "--server-side", "--field-manager=dtj-deploy", "-f", "-", stdin=json.dumps(namespace))
    repository, _, tag = reference.rpartition(":")
    host, _, repository = repository.partition("/")
    values = [f"image.registry={host}", f"image.repository={repository}", f"image.tag={tag}"]
    options = [
        "--namespace",
        NAMESPACE,
        "--kubeconfig",
        str(kind.kubeconfig()),
        "--history-max",
        "5",
        "--set-string",
        ",".join(values),
    ]
    chart = str(ROOT / "charts/dtj-operator")
    run([kind.program("helm"), "upgrade", "--install", RELEASE, chart, *options], timeout=90)
    # Look the Deployment up by label, because the chart decides its name.
    deployment = kind.kubectl("-n", NAMESPACE, "get", "deployment", "-l", SELECTOR, "-o", "name").strip()
    try:
        kind.kubectl(
            "-n", NAMESPACE, "rollout", "status", deployment, f"--timeout={READY_SECONDS:g}s", timeout=READY_SECONDS + 5
        )
    except ProvisionError as error:
        raise ProvisionError(f"the operator is not ready after {READY_SECONDS:g} s\n{_evidence()}") from error


def _pull(node: str, references: list[str]) -> None:
    """Pulls the images before the first job, so that its start doesn't wait for gigabytes."""
    for reference in references:
        run(["docker", "exec", node, "crictl", "pull", reference], timeout=PULL_TIMEOUT)


def _evidence() -> str:
    """Returns what an engineer would look at next: pods, events and logs."""
    questions = (
        ("get", "pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", "-l", SELECTOR, "--tail=40", "--all-containers"),
        ("logs", "-l", SELECTOR, "--tail=40", "--all-containers", "--previous"),
    )
    parts = []
    for question in questions:
        try:
            answer = kind.kubectl("-n", NAMESPACE, *question).strip()
        except ProvisionError as error:
            answer = str(error)
        parts.append("\n".join([f"--- kubectl {' '.join(question)}", *answer.splitlines()[-40:]]))
    return "\n".join(parts)
