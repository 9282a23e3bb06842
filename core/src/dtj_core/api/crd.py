"""The CustomResourceDefinition, made from the models. `python3 hack/generate.py` writes it to crds/."""

from __future__ import annotations

from typing import Any

import yaml

from dtj_contract import names
from dtj_core.api.rules import PRESERVE
from dtj_core.api.template import PodTemplate
from dtj_core.api.v1alpha1 import DistributedTrainingJob

JsonSchema = dict[str, Any]
NAME = f"{names.PLURAL}.{names.GROUP}"
HEADER = "# Made by hack/generate.py from core/src/dtj_core/api; do not edit.\n"

PRINTER_COLUMNS = (
    # name, JSON path, type, priority (1: only with -o wide)
    ("Phase", ".status.phase", "string", 0),
    ("Ready", ".status.ready", "string", 0),
    ("Restarts", ".status.restarts.total", "integer", 0),
    ("Step", ".status.progress.step", "integer", 0),
    ("Attempt", ".status.attempt", "integer", 1),
    ("Loss", ".status.progress.loss", "number", 1),
    ("Checkpoint", ".status.checkpoint.step", "integer", 1),
    ("Reason", ".status.reason", "string", 1),
    ("Age", ".metadata.creationTimestamp", "date", 0),
)


def schema() -> JsonSchema:
    """Structural schema of the object: no references, no titles, as apiextensions.k8s.io/v1 wants it."""
    root = _structural(DistributedTrainingJob.model_json_schema(by_alias=True), {})
    fields = root["properties"]["spec"]["properties"]
    # In Python the template stays the dict that it was; PodTemplate lends it its schema here and its rules in read.py.
    fields["template"] = _structural(PodTemplate.model_json_schema(by_alias=True), {}) | {
        "description": fields["template"]["description"]
    }
    # The API server has its own schema for these three and refuses most of what could be said here.
    root["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    root["required"] = ["spec"]
    result: JsonSchema = root
    return result


def _structural(node: Any, definitions: JsonSchema) -> Any:
    """A node of a pydantic schema as a structural one; `definitions` are what its $refs mean."""
    if isinstance(node, list):
        return [_structural(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    definitions = definitions | node.pop("$defs", {})
    if "$ref" in node:  # what stands beside a reference is about this use of it, and wins
        node = definitions[node.pop("$ref").rpartition("/")[2]] | node
    if "anyOf" in node:  # Optional[X] is X: absent, never null
        (only,) = (option for option in node.pop("anyOf") if option != {"type": "null"})
        return _structural(only | {k: v for k, v in node.items() if k != "default" or v is not None}, definitions)
    if node.get("additionalProperties") is True and "properties" not in node:  # dict[str, Any]
        node[PRESERVE] = True
    if isinstance(node.get("additionalProperties"), bool):
        del node["additionalProperties"]
    if isinstance(node.get("additionalProperties"), dict):  # dict[str, X]
        # Replaced as a whole: a server-side apply that takes the last key out of a granular map leaves null behind,
        # which the schema then refuses.
        node["x-kubernetes-map-type"] = "atomic"
    if node.get("type") == "integer":
        node["format"] = "int64"
    node.pop("title", None)
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].split())
    if node.get("default", "") is None:
        del node["default"]
    elif isinstance(node.get("default"), dict):  # a field without a default is absent from its object's, never null
        node["default"] = {key: value for key, value in node["default"].items() if value is not None}
    properties = node.pop("properties", None)  # its keys are field names, not keywords such as "title"
    result = {key: value if key == "default" else _structural(value, definitions) for key, value in node.items()}
    if properties is not None:
        result["properties"] = {name: _structural(value, definitions) for name, value in properties.items()}
    return result


def crd() -> JsonSchema:
    """The whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.SHORT_NAME],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "jsonPath": path, "type": kind, "priority": priority}
                        for name, path, kind, priority in PRINTER_COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def render() -> str:
    """The CustomResourceDefinition as YAML."""
    return HEADER + yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True)
