"""The programs and manifests of the other operators, from their Go modules."""

from __future__ import annotations

from pathlib import Path

from hack.cluster import gobuild
from hack.cluster.versions import Tool

JOBSET = Tool("jobset", "sigs.k8s.io/jobset", "v0.11.0", "sigs.k8s.io/jobset")
TRAINING_OPERATOR = Tool(
    "training-operator",
    "github.com/kubeflow/training-operator",
    "v1.9.3",
    "github.com/kubeflow/training-operator/cmd/training-operator.v1",
)
JOBSET_AGENT = Tool(
    "in-place-restart-agent", JOBSET.module, JOBSET.version, "sigs.k8s.io/jobset/cmd/in-place-restart-agent"
)
"""Restarts the container of a pod for JobSet's InPlaceRestart."""
TOOLS = (JOBSET, TRAINING_OPERATOR)


def source(tool: Tool) -> Path:
    """Returns the folder of the module, which has its manifests."""
    return Path(gobuild.download(tool)["Dir"])


if __name__ == "__main__":
    for each in TOOLS:
        print(gobuild.program(each))
