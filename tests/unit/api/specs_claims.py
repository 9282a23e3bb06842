"""Jobs whose claim for checkpoints the operator creates. See specs.py."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
WHERE = "spec.checkpoint.volume.claimTemplate"


def claim(**fields: Any) -> Object:
    return {"checkpoint": {"volume": {"claimTemplate": {"size": "10Gi"} | fields}}}


GOOD: dict[str, Object] = {
    "a claim of a size": {"replicas": 3, **claim()},
    "a claim that goes with the job": claim(size="1.5Ti", storageClassName="nfs", whenDeleted="Delete"),
    "a claim of less than one": claim(size="0.50Gi"),
    "a claim for one node": {"replicas": 3, **claim(accessModes=["ReadWriteOnce"])},
    "a claim for one pod": claim(accessModes=["ReadWriteOncePod"]),
    "a sidecar that mounts the checkpoints where the trainer does": {
        **claim(),
        "template": {
            "spec": {
                "containers": [
                    {"name": "trainer"},
                    {"name": "x", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/checkpoints"}]},
                ],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "j-checkpoints"}}],
            }
        },
    },
}
BAD: dict[str, tuple[Object, str]] = {
    "a claim for one pod and two pods": (
        {"replicas": 2, **claim(accessModes=["ReadWriteOncePod"])},
        "spec.checkpoint",
    ),
    "a claim for one pod, and a spare": ({"spares": 1, **claim(accessModes=["ReadWriteOncePod"])}, "spec.checkpoint"),
    "a claim without a size": (claim(size=None), f"{WHERE}.size"),
    "a claim of nothing": (claim(size="0"), f"{WHERE}.size"),
    "a claim of nothing at all": (claim(size="00.0Gi"), f"{WHERE}.size"),
    "a claim of any size": (claim(size="big"), f"{WHERE}.size"),
    "a claim without access": (claim(accessModes=[]), f"{WHERE}.accessModes"),
    "a claim that can't be written": (claim(accessModes=["ReadOnlyMany"]), f"{WHERE}.accessModes[0]"),
    "access for one pod and more": (claim(accessModes=["ReadWriteOncePod", "ReadWriteMany"]), f"{WHERE}.accessModes"),
    "a name that no claim can have": (
        {"checkpoint": {"volume": {"claimName": "My_Claim"}}},
        "spec.checkpoint.volume.claimName",
    ),
    "a claim that is there and one that is made": (
        {"checkpoint": {"volume": {"claimName": "c", "claimTemplate": {"size": "1Gi"}}}},
        "spec.checkpoint.volume",
    ),
}
