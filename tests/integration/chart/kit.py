"""Renders the chart with the real helm."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from dtj_operator import settings
from hack.cluster import kind
from hack.cluster.versions import KUBERNETES

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/dtj-operator"
NAMESPACE = "dtj-system"
Object = dict[str, Any]


def helm(*arguments: str, kubeconfig: Path | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    login = ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
    command = [str(kind.program("helm")), *arguments, *login]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def values(chosen: Object) -> list[str]:
    return [part for key, value in chosen.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]


def render_text(chosen: Object, release: str = "dtj", namespace: str = NAMESPACE) -> str:
    return _rendered(tuple(values(chosen)), release, namespace)


@functools.cache
def _rendered(settings: tuple[str, ...], release: str, namespace: str) -> str:
    done = helm(
        "template", release, str(CHART), "-n", namespace, "--kube-version", f"v{KUBERNETES}", "--skip-tests", *settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(chosen: Object | None = None, release: str = "dtj") -> list[Object]:
    return [document for document in yaml.safe_load_all(render_text(chosen or {}, release)) if document]


def of_kind(documents: list[Object], kind: str) -> list[Object]:
    return [document for document in documents if document["kind"] == kind]


def pod(documents: list[Object]) -> Object:
    [deployment] = of_kind(documents, "Deployment")
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def arguments_of(documents: list[Object], tmp_path: Path) -> settings.Options:
    """Returns the operator's options as its pod is started."""
    [container] = pod(documents)["containers"]
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "master-key"]
    key = tmp_path / "key"
    key.write_bytes(b"k" * 64)
    return settings.parse([a.replace(f"{mount['mountPath']}/key", str(key)) for a in container["args"]], environ={})


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def lease_roles(documents: list[Object]) -> list[Object]:
    return [r for r in of_kind(documents, "Role") if any("leases" in rule["resources"] for rule in r["rules"])]


def hooks(chosen: Object | None = None, release: str = "dtj") -> list[Object]:
    """Returns the objects of `helm test`."""
    done = helm(
        "template", release, str(CHART), "-n", NAMESPACE, "--kube-version", f"v{KUBERNETES}", *values(chosen or {})
    )
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    return [d for d in documents if d["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
