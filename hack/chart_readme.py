"""The chart's README: a table of all values, from values.yaml and its comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):(?P<rest>.*)$")
_RUNBOOK = "../../docs/runbook.md"
_WISHES = {
    "serve some namespaces only": (
        "`watchNamespaces`: a Role in each replaces the ClusterRole ([security](../../docs/security.md))"
    ),
    "install a second release, or one of another name": (
        "`crds.enabled: false`, because the CRDs belong to one release (`--take-ownership` of Helm 3.17 passes them on)"
    ),
    "render without a cluster (Argo CD, Flux)": (
        "`masterKey.existingSecret`, because each rendering would make another key"
    ),
    "see metrics and alerts": (
        "`metrics.serviceMonitor`, `podMonitor`, `prometheusRule` and `dashboard`;"
        f" [the runbook]({_RUNBOOK}#alerts) explains each alert"
    ),
    "keep runs in MLflow, or see them in TensorBoard": (
        "`tracking.mlflow.enabled`, `tracking.tensorboard.enabled` ([tracking](../../docs/tracking.md))"
    ),
    "queue jobs with Kueue, or place them with a gang scheduler": (
        "`kueue.enabled`, `podGroups.enabled` ([queues](../../docs/queueing.md))"
    ),
    "pull from a registry with a login": (
        "`imagePullSecrets` for the operator, `agent.pullSecrets` for the agent in training pods"
    ),
    "run on OpenShift": "`openshift: true`",
}
_LINKS = {
    "upgrades": f"[upgrades]({_RUNBOOK}#upgrades-and-rollbacks)",
    "deleting": f"[to delete everything]({_RUNBOOK}#deleting-everything)",
}
_HEAD = """# dtj-operator

The Helm chart of the operator for `DistributedTrainingJob`.

```
helm upgrade --install dtj charts/dtj-operator -n dtj-system --create-namespace
helm test dtj -n dtj-system
```

Kubernetes 1.30 or later is required.
No image is published: `image.registry` names [where you pushed yours](../../README.md#on-a-cluster).
`helm test` runs a job of two pods to `Complete`, prints what it saw, and leaves nothing behind.
A failed test leaves its pod, whose log is printed too; the next test replaces the pod.
Older versions of Helm print no log; `--logs` finds no pod after a test that succeeded.
An unknown value is rejected, with its name.

{wishes}

`helm upgrade` and `helm rollback` replace the CRDs, too, and restart no job ({upgrades}).
`helm uninstall` keeps the CRDs and the master key, and with them every job ({deleting}).

## Values

This table is generated from `values.yaml` (`make generate`).

| value | default | meaning |
|---|---|---|
"""


def render(values: Path) -> str:
    """Returns the page."""
    rows = (f"| `{path}` | {default} | {text} |" for path, default, text in _rows(values.read_text("utf-8")))
    wishes = "\n".join(["| to | set |", "|---|---|", *(f"| {wish} | {value} |" for wish, value in _WISHES.items())])
    return _HEAD.format(wishes=wishes, **_LINKS) + "\n".join(rows) + "\n"


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields path, default and comment of every value that has no commented value below it."""
    defaults = yaml.safe_load(text)
    comment: list[str] = []
    parents: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
            continue
        found = _KEY.match(line)
        if found is None:
            comment = []
            continue
        parents = [*parents[: len(found["indent"]) // 2], found["key"]]
        value, _, trailing = found["rest"].partition(" #")
        meaning = " ".join([*comment, trailing.strip()]).strip().replace("|", "\\|")
        comment = []
        default = defaults
        for key in parents:
            default = default[key]
        has_children = not value.strip() and isinstance(default, dict)
        if not has_children:
            yield ".".join(parents), f"`{json.dumps(default)}`", meaning
        elif meaning:
            yield ".".join(parents), "", meaning
