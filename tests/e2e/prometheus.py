"""A real Prometheus in a pod, which scrapes other pods and answers the queries of a dashboard."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import gobuild
from tests.e2e.kit import Kubectl, Object, wait_until
from tests.e2e.test_network import plain_pod

Series = dict[str, Any]
PORT = 9090
SCRAPE_SECONDS = 3
STEP_SECONDS = 5
MOUNT = "/shared"
# The charts of Prometheus label its pods so, and the NetworkPolicy of a job lets pods with this label in.
LABELS = {"app.kubernetes.io/name": "prometheus"}


class Prometheus:
    """Runs from the namespace's shared volume, in an image that need not have it."""

    def __init__(self, kubectl: Kubectl, folder: Path, image: str, targets: Iterable[Object]) -> None:
        """`folder` is the shared volume on this machine."""
        self.kubectl = kubectl
        shutil.copy(gobuild.binary("prometheus"), folder / "prometheus")
        scrape = {
            "job_name": "pods",
            # As the chart's PodMonitor: the label `job` is the DistributedTrainingJob's name.
            "honor_labels": True,
            "static_configs": list(targets),
        }
        config = {"global": {"scrape_interval": f"{SCRAPE_SECONDS}s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [f"{MOUNT}/prometheus", f"--config.file={MOUNT}/prometheus.yml", "--storage.tsdb.path=/tmp/data"]
        pod = plain_pod("prometheus", image, LABELS, *command)
        pod["spec"]["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "shared", "mountPath": MOUNT, "readOnly": True}]
        kubectl.apply(pod)
        wait_until("Prometheus is ready", lambda: self._raw("-/ready").code == 0, timeout=120)

    @property
    def proxy_path(self) -> str:
        """The path of the API server that leads to Prometheus."""
        return f"/api/v1/namespaces/{self.kubectl.namespace}/pods/prometheus:{PORT}/proxy"

    def _raw(self, path: str) -> Any:
        return self.kubectl.try_("get", "--raw", f"{self.proxy_path}/{path}")

    def _get(self, path: str, **arguments: object) -> Any:
        done = self._raw(f"api/v1/{path}?{urllib.parse.urlencode(arguments)}")
        assert done.code == 0, f"{arguments}: {done.err}"
        return json.loads(done.out)["data"]

    def broken_targets(self) -> list[str]:
        """Returns the error of each target whose last scrape failed, and of each that was not scraped yet."""
        targets = self._get("targets")["activeTargets"]
        return [f"{t['scrapeUrl']}: {t['health']} {t['lastError']}" for t in targets if t["health"] != "up"]

    def query_range(self, expression: str, start: float, end: float) -> list[Series]:
        found = self._get("query_range", query=expression, start=start, end=end, step=STEP_SECONDS)
        return list(found["result"])

    def label_values(self, variable: str) -> list[str]:
        """Returns what Grafana offers for a variable `label_values(selector, label)`."""
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable)
        assert found, variable
        return list(self._get(f"label/{found[2]}/values", **{"match[]": found[1]}))


def targets_of(kubectl: Kubectl, selector: str, port: int) -> list[Object]:
    """Returns the scrape targets of these pods, with the labels that the Prometheus operator gives to a pod."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port}"],
            "labels": {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"]},
        }
        for pod in kubectl.list("pods", selector)
    ]
