"""Random job specs: parts of good and bad specs, their mutations, and what the schema of the CRD allows.

A spec follows from its seed and its number alone, so a case of a failed run is made again with
`spec_of(seed, number)`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from dtj_core.api import crd
from tests.unit.api.specs import BAD, GOOD, MINIMAL

Object = dict[str, Any]
Path = tuple[str | int, ...]

# Mistakes of people, and values that a reader may not expect.
VALUES: tuple[Any, ...] = (
    None, "", " ", "x", "X_y", "1", "1Gi", "0.5", "true", "a\nb", "a\n", "é", "\u0663", "\U0001f917", "a b", "/x",
    "/x/", "-", ".", "a.b", "dtj-x", "DTJ_X", "$(HOME)", "x" * 300, 0, -1, 1, 2, 3, 64, 65, 1024, 1025, 2**31 - 1,
    2**31, 2**63 - 1, 2**63, -(2**63) - 1, 0.5, 3.0, -0.0, 1e300, True, False, [], {}, [None], [""], [0], [[]], [{}],
    {"": ""}, {"a": None}, {"a": 1}, {"name": "x"}, [{"name": "x"}], [{"name": "x", "value": "1"}],
)  # fmt: skip
NAMES = ("newIn2030", "name", "image", "x", "enabled", "", "a b", "__class__", "model_config", "é")
KINDS = ("mutated", "mutated", "mutated", "mixed", "mixed", "schema", "schema", "bad")
DEPTH = 7


def spec_of(seed: int, number: int) -> Object:
    """Returns the spec with this number: what stands under `spec` of a job, complete or not."""
    rng = random.Random(f"{seed}:{number}")
    kind = rng.choice(KINDS)
    if kind == "mutated":
        return _mutated(rng, _good(rng), rng.choice((1, 1, 1, 2, 3)))
    if kind == "mixed":
        return _mutated(rng, _mixed(rng), rng.choice((0, 0, 0, 1)))
    if kind == "bad":
        return _mutated(rng, _mixed(rng) | deepcopy(rng.choice(list(BAD.values()))[0]), 0)
    made = {
        name: _made(rng, field, ("spec", name), 0)
        for name, field in schema()["properties"].items()
        if rng.random() < 0.15
    }
    return _mutated(rng, MINIMAL | made, rng.choice((0, 0, 0, 1)))


@functools.cache
def schema() -> Object:
    """Returns the schema of the spec."""
    found: Object = crd.schema()["properties"]["spec"]
    return found


def _good(rng: random.Random) -> Object:
    spec: Object = MINIMAL | deepcopy(rng.choice(list(GOOD.values())))
    return {name: value for name, value in spec.items() if value is not None}


def _mixed(rng: random.Random) -> Object:
    """Returns the fields of several good specs together."""
    spec = _good(rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        spec |= {name: value for name, value in _good(rng).items() if rng.random() < 0.7}
    return spec


# --- values that the schema allows ------------------------------------------------------------------------------------


@functools.cache
def _known() -> dict[Path, list[Any]]:
    """Returns the values of each field in all good specs. List indexes are 0."""
    found: dict[Path, list[Any]] = {}
    for spec in GOOD.values():
        for path, value in _walk({"spec": spec}, ()):
            found.setdefault(tuple(0 if isinstance(part, int) else part for part in path), []).append(value)
    return found


def _made(rng: random.Random, node: Object, path: Path, depth: int) -> Any:
    """Returns a value for a node of the schema, usually one that the schema accepts."""
    known = _known().get(path, [])
    if known and rng.random() < 0.4:
        return deepcopy(rng.choice(known))
    if "enum" in node:
        return rng.choice(node["enum"])
    match node.get("type"):
        case "object":
            return _made_object(rng, node, path, depth)
        case "array":
            count = rng.choice((0, 1, 1, 2, 3, node.get("minItems", 0), min(node.get("maxItems", 4), 33)))
            return [_made(rng, node["items"], (*path, 0), depth + 1) for _ in range(count)]
        case "integer" | "number":
            low, high = node.get("minimum", -5), node.get("maximum", 2**31)
            return rng.choice((low, high, low + 1, max(low, min(high, rng.randrange(1, 100)))))
        case "boolean":
            return rng.random() < 0.5
        case "string":
            texts = [value for value in (*known, *VALUES) if isinstance(value, str)]
            return rng.choice(texts)[: node.get("maxLength", 10**6)]
    return deepcopy(rng.choice(VALUES))


def _made_object(rng: random.Random, node: Object, path: Path, depth: int) -> Object:
    fields, required = node.get("properties", {}), node.get("required", ())
    share = 0.0 if depth > DEPTH else 0.3
    found = {
        name: _made(rng, field, (*path, name), depth + 1)
        for name, field in fields.items()
        if name in required or rng.random() < share
    }
    values = node.get("additionalProperties")
    if values is not None or (node.get(crd.PRESERVE) and rng.random() < 0.3):
        for name in rng.sample(NAMES, rng.choice((0, 1, 2))):
            found.setdefault(
                name, deepcopy(rng.choice(VALUES)) if values is None else _made(rng, values, (*path, name), depth + 1)
            )
    return found


# --- mutations --------------------------------------------------------------------------------------------------------


def _walk(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*path, key), value
        yield from _walk(value, (*path, key))


def _mutated(rng: random.Random, spec: Object, times: int) -> Object:
    """Returns the spec with this number of changes."""
    spec = deepcopy(spec)
    for _ in range(times):
        places = list(_walk(spec, ()))
        if not places:
            break
        path, value = rng.choice(places)
        parent: Any = spec
        for part in path[:-1]:
            parent = parent[part]
        rng.choice((_replace, _replace, _remove, _rename, _add, _twist, _twist))(rng, parent, path[-1], value)
    return spec


def _replace(rng: random.Random, parent: Any, key: Any, value: Any) -> None:
    parent[key] = deepcopy(rng.choice(VALUES))


def _remove(rng: random.Random, parent: Any, key: Any, value: Any) -> None:
    del parent[key]


def _rename(rng: random.Random, parent: Any, key: Any, value: Any) -> None:
    """Misspells a field, or moves an item."""
    del parent[key]
    if isinstance(parent, list):
        parent.insert(0, value)
    else:
        parent[rng.choice((key[:-1], key + "s", key.capitalize(), key.lower(), *NAMES))] = value


def _add(rng: random.Random, parent: Any, key: Any, value: Any) -> None:
    """Adds a field that nobody knows, or an item."""
    if isinstance(value, list):
        value.append(deepcopy(rng.choice(value if value and rng.random() < 0.5 else VALUES)))
    elif isinstance(value, dict):
        value[rng.choice(NAMES)] = deepcopy(rng.choice(VALUES))
    elif isinstance(parent, list):
        parent.append(deepcopy(value))
    else:
        parent[rng.choice(NAMES)] = deepcopy(rng.choice(VALUES))


def _twist(rng: random.Random, parent: Any, key: Any, value: Any) -> None:
    """Changes a value a little."""
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int | float):
        parent[key] = rng.choice((value + 1, value - 1, -value, value * 1000, float(value), value + 0.5, str(value)))
    elif isinstance(value, str):
        parent[key] = rng.choice((
            value + "\n", value + "/", "/" + value, value.upper(), value + value, value[:-1], value + "\u0301",
            " " + value, value.replace("/", "//"), value + ".", value + "-", [value], {value: value},
        ))  # fmt: skip
    elif isinstance(value, list):
        parent[key] = rng.choice((value + value, value[::-1], value[:1], {str(i): v for i, v in enumerate(value)}))
    elif isinstance(value, dict):
        parent[key] = rng.choice((list(value), list(value.values()), [value], dict.fromkeys(value)))
    else:
        _replace(rng, parent, key, value)
