"""Generates the CustomResourceDefinition of DistributedTrainingRuntime from that of the job.

`python3 hack/generate.py` writes it to crds/.
"""

from __future__ import annotations

import json
import re

import yaml

from dtj_contract import names
from dtj_core.api import crd
from dtj_core.api.base_model import VALIDATIONS
from dtj_core.api.crd import JsonSchema
from dtj_core.api.runtime import FIELDS
from dtj_core.api.runtime_ref import NAME_PATTERN
from dtj_core.api.v1alpha1 import Spec

NAME = f"{names.RUNTIME_PLURAL}.{names.GROUP}"
DESCRIPTION = (
    "Defaults of a platform for training jobs: an image, a pod template, a checkpoint volume, restart rules and more."
    " A job names it in spec.runtimeRef; the job's own fields win. A change never touches a job that runs."
)
SPEC = "What the jobs get unless they set it themselves. Every field means what the field of the job means."


def schema() -> JsonSchema:
    """Returns the structural schema of the object: the fields that a runtime may give, and the rules about them."""
    job = crd.without_runtime_defaults(crd.schema())
    fields = job["properties"]["spec"]["properties"]
    spec = {
        "type": "object",
        "description": SPEC,
        "properties": {name: fields[name] for name in FIELDS},
        VALIDATIONS: [rule.as_crd() for rule in Spec.rules if rule.holds is not None and _is_about_runtime(rule.cel)],
    }
    rule = {
        "rule": f"self.metadata.name.matches('{NAME_PATTERN}')",
        "message": "name the runtime with a-z, 0-9, '-' and '.'",
    }
    return {
        "type": "object",
        "description": DESCRIPTION,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
        },
        VALIDATIONS: [rule],
    }


def _is_about_runtime(cel: str) -> bool:
    return set(re.findall(r"\bself\.(\w+)", cel)) <= set(FIELDS)


def definition() -> JsonSchema:
    """Returns the whole CustomResourceDefinition."""
    columns = [
        {"name": "Image", "jsonPath": ".spec.image", "type": "string"},
        {"name": "Queue", "jsonPath": ".spec.queueName", "type": "string", "priority": 1},
        {"name": "Age", "jsonPath": ".metadata.creationTimestamp", "type": "date"},
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Cluster",
            "names": {
                "kind": names.RUNTIME_KIND,
                "listKind": f"{names.RUNTIME_KIND}List",
                "plural": names.RUNTIME_PLURAL,
                "singular": names.RUNTIME_SINGULAR,
                "shortNames": [names.RUNTIME_SHORT_NAME],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def render() -> str:
    """Returns the CustomResourceDefinition as YAML."""
    # Through JSON, so that no anchors stand for parts that are the same object.
    plain = json.loads(json.dumps(definition()))
    return crd.HEADER + yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True)
