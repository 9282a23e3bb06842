"""The CustomResourceDefinition is structural and small, and the committed files are up to date."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dtj_core.api import crd, docs
from dtj_core.api.base_model import VALIDATIONS

ROOT = Path(__file__).parents[3]


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "hack/generate.py", "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_check_fails_on_an_outdated_file(tmp_path: Path) -> None:
    copy = tmp_path / "crd.yaml"
    copy.write_text("old")
    command = [sys.executable, ROOT / "hack/generate.py", "--check", "--chart", copy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert str(copy) in done.stderr
    assert copy.read_text() == "old"


def test_crd_fits_twice_into_the_annotation_of_kubectl_apply() -> None:
    """kubectl writes the object as JSON without spaces, and the API server takes 256 KiB of annotations."""
    assert len(json.dumps(crd.crd(), separators=(",", ":")).encode()) <= 128 * 1024


def test_schema_is_structural() -> None:
    for node in nodes(crd.schema()):
        if "type" in node and isinstance(node["type"], str):
            assert not {"$ref", "anyOf", "title", "additionalProperties"} & {
                k for k, v in node.items() if v in (True, False)
            }
        assert "$ref" not in node
        assert "anyOf" not in node


def test_every_list_and_text_in_a_rule_is_bounded() -> None:
    spec = crd.schema()["properties"]["spec"]
    for node in nodes(spec):
        if node.get("type") == "array":
            assert "maxItems" in node
        if node.get("type") == "string":
            assert {"maxLength", "enum"} & set(node) or set(node) <= {"type", "description"}, node


def test_every_rule_has_a_message_of_one_sentence() -> None:
    rules = [rule for node in nodes(crd.schema()) for rule in node.get(VALIDATIONS, ())]
    assert len(rules) > 20
    for rule in rules:
        assert 10 < len(rule["message"]) <= 160, rule
        assert "\n" not in rule["message"]


def test_conditions_are_a_list_map_by_type() -> None:
    conditions = crd.schema()["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_yaml_matches_the_models() -> None:
    assert yaml.safe_load(crd.render()) == crd.crd()


def test_reference_page_names_every_field() -> None:
    page = docs.render()
    for node in nodes(crd.schema()["properties"]["spec"]):
        for name in node.get("properties", ()) if isinstance(node.get("properties"), dict) else ():
            assert f"`{name}`" in page, name


def fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in (node.get("properties") or {}).items():
        yield f"{path}.{name}", field
        yield from fields(field.get("items", field), f"{path}.{name}")


def test_kubectl_explain_has_a_sentence_on_every_field() -> None:
    properties = crd.schema()["properties"]
    found = [entry for name in ("spec", "status") for entry in fields(properties[name], name)]
    assert len(found) > 300
    for path, field in found:
        text = field.get("description", "")
        assert len(text) > 10, path
        assert text[0].isupper(), (path, text)
        assert text.endswith((".", ".)")), (path, text)
    assert dict(found)["spec.template.spec.containers.env.name"]["description"].endswith(
        "kubectl explain pod.spec.containers.env.name."
    )


def test_columns_show_fields_of_the_schema() -> None:
    names = {path for name in ("spec", "status") for path, _ in fields(crd.schema()["properties"][name], f".{name}")}
    assert {path for _, path, kind, *_ in crd.PRINTER_COLUMNS if kind != "date"} <= names
    narrow = [name for name, *_, priority, _ in crd.PRINTER_COLUMNS if priority == 0]
    assert narrow == ["Phase", "Ready", "Restarts", "Step", "Progress", "Reason", "Age"]
