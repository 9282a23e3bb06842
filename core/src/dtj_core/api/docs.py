"""The reference page of the API, made from the same schema as the CRD. `python3 hack/generate.py` writes it to docs/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dtj_contract import names
from dtj_core.api.crd import PRINTER_COLUMNS, JsonSchema, schema
from dtj_core.api.rules import PRESERVE, VALIDATIONS

INTRODUCTION = f"""# {names.KIND}

<!-- Made by hack/generate.py from core/src/dtj_core/api; do not edit. -->

`apiVersion: {names.API_VERSION}`, `kind: {names.KIND}`, short name `{names.SHORT_NAME}`.
`kubectl explain {names.SHORT_NAME}.spec` says the same at the prompt. Fields without a default may be left out unless they are
called required.

`kubectl get {names.SHORT_NAME}` prints {", ".join(c[0] for c in PRINTER_COLUMNS if c[3] == 0)}; `-o wide` also
{", ".join(c[0] for c in PRINTER_COLUMNS if c[3] == 1)}.
"""

TEMPLATE = (
    "A Kubernetes PodTemplateSpec, kept as written. `kubectl apply` refuses a value of another type in one of these fields; all "
    "other fields are checked by the API server when the operator tries the pod, before it makes the StatefulSet. "
    "`initContainers[]` have the types of `containers[]`."
)


def render() -> str:
    """The whole page as Markdown."""
    root = schema()
    parts = [INTRODUCTION, *_rules(root, "Rules of the object")]
    for name in ("spec", "status"):
        parts.extend(_section(name, root["properties"][name]))
    return "\n".join(parts).rstrip() + "\n"


def _section(path: str, node: JsonSchema) -> Iterator[str]:
    """A table of an object's fields and its rules, then the same for every object in it."""
    yield f"## {path}\n\n{node.get('description', '').strip()}\n"
    yield "| field | type | default | what it is |\n|---|---|---|---|"
    required = node.get("required", ())
    inner: list[tuple[str, JsonSchema]] = []
    template: JsonSchema | None = None
    for name, field in node["properties"].items():
        need = "required" if name in required else _default(field)
        yield f"| `{name}` | {_type(field)} | {need} | {_text(field)} |"
        target = field.get("items", field)
        if name == "template":
            template = field
        elif "properties" in target:
            inner.append((f"{path}.{name}{'[]' if 'items' in field else ''}", target))
    yield ""
    yield from _rules(node, "Rules")
    for child_path, child in inner:
        yield from _section(child_path, child)
    if template is not None:
        yield from _template(f"{path}.template", template)


def _template(path: str, node: JsonSchema) -> Iterator[str]:
    """The fields of the pod template whose types `kubectl apply` checks, a line for each object."""
    yield f"## {path}\n\n{TEMPLATE}\n"
    objects = [("", node)]
    for at, one in objects:  # which grows as it is walked
        fields = one["properties"]
        yield f"- {f'`{at}`: ' if at else ''}" + ", ".join(f"`{name}` ({_type(field)})" for name, field in fields.items())
        for name, field in fields.items():
            if name != "initContainers" and "properties" in field.get("items", field):
                inside = f"{at}.{name}".lstrip(".") + ("[]" if "items" in field else "")
                objects.append((inside, field.get("items", field)))
    yield ""
    for at, one in objects:
        yield from _rules(one, f"Rules of {at or path}")


def _rules(node: JsonSchema, title: str) -> Iterator[str]:
    rules = node.get(VALIDATIONS, ())
    if rules:
        yield f"{title}:\n"
        for rule in rules:
            field = rule.get("fieldPath", "")[1:]
            yield f"- `{field}`: {rule['message']}" if field else f"- {rule['message']}"
        yield ""


def _type(node: JsonSchema) -> str:
    if "enum" in node:
        return " or ".join(f"`{json.dumps(value)}`" for value in node["enum"])
    kind = str(node.get("type", "any"))
    if kind == "array":
        kind = f"array of {node['items'].get('type')}"
    elif node.get(PRESERVE) and "properties" not in node:
        kind = "object, kept as written"
    elif "additionalProperties" in node:
        kind = f"map of {node['additionalProperties'].get('type')}"
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None:
        kind += f", {low} or more" if high is None or high == 2**31 - 1 else f", {low} to {high}"
    return kind


def _default(node: JsonSchema) -> str:
    value: Any = node.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


def _text(node: JsonSchema) -> str:
    return " ".join(str(node.get("description", "")).split()).replace("|", "\\|")
