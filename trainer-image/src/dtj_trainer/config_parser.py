"""Builds a config from a YAML file and flags: `--optimizer.lr 0.01` sets `optimizer: {lr: …}`."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import yaml

from dtj_trainer.errors import ConfigError
from dtj_trainer.strategies import KINDS

MOVED = {"strategy.comm_hook": "communication.method"}
"""Fields of earlier versions."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the file as a mapping. Raises ConfigError, with the place, if it is not YAML."""
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as e:
        raise ConfigError(f"--config {path}: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: write a mapping of fields, such as epochs: 10")
    return tree


def override(tree: dict[str, Any], flags: Sequence[str]) -> None:
    """Sets dotted flags (`--a.b value` or `--a.b=value`) in the tree; values are read as YAML."""
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"{flag!r}: write --field value, such as --optimizer.lr 0.01")
        name, given, text = flag[2:].partition("=")
        if not given:
            if not rest:
                raise ConfigError(f"{flag}: a value must follow")
            text = rest.pop(0)
        *path, last = name.replace("-", "_").split(".")
        at = tree
        for key in path:
            if not isinstance(at.get(key), dict):
                at[key] = {"kind": at[key]} if isinstance(at.get(key), str) else {}  # strategy: fsdp, then --strategy.x
            at = at[key]
        try:
            at[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(
                f"{flag}: {text!r} is not valid YAML; write a number, a word, [a, list] or {{a: mapping}}"
            ) from None


def build(cls: type[Any], tree: Mapping[str, Any], path: str = "") -> Any:
    """Returns a config dataclass built from a mapping.

    Raises ConfigError, which names a wrong field and what to write.
    """
    hints = get_type_hints(cls)
    known = [f.name for f in fields(cls) if f.init]
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in known:
            if moved := MOVED.get(f"{path}{key}"):
                raise ConfigError(f"{path}{key} is {moved} now")
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"fields are {', '.join(known)}"
            raise ConfigError(f"{path}{key}: no such field; {hint}")
        values[key] = convert(hints[key], value, f"{path}{key}")
    for field in fields(cls):
        if field.init and field.name not in values and field.default is field.default_factory is MISSING:
            raise ConfigError(f"{path}{field.name} is missing: write {_spell(hints[field.name])}")
    return cls(**values)


def convert(annotation: Any, value: Any, name: str) -> Any:
    """Returns `value` as the type of a field."""
    if get_origin(annotation) in (Union, types.UnionType):
        options = get_args(annotation)
        if value is None and type(None) in options:
            return None
        if set(KINDS.values()) <= set(options):
            return _strategy(value, name)
        options = tuple(o for o in options if o is not type(None))
        if len(options) == 1:
            return convert(options[0], value, name)
        for option in options:
            try:
                return convert(option, value, name)
            except ConfigError:
                continue
        raise ConfigError(f"{name}={value!r}: write {' or '.join(_spell(o) for o in options)}")
    if get_origin(annotation) is Literal:
        if value not in get_args(annotation):
            raise ConfigError(f"{name}={value!r}: write {_spell(annotation)}")
        return value
    if is_dataclass(annotation):
        if not isinstance(value, dict):
            raise ConfigError(f"{name}={value!r}: write a mapping of fields")
        return build(cast("type[Any]", annotation), value, f"{name}.")
    if annotation is Path and isinstance(value, str):
        return Path(value)
    if annotation is float and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 1e-3 as text
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"{name}={value!r}: write a number")
        return number
    if get_origin(annotation) in (list, tuple) and isinstance(value, list):
        inner = [a for a in get_args(annotation) if a is not ...]
        if get_origin(annotation) is tuple and ... not in get_args(annotation) and len(value) != len(inner):
            raise ConfigError(f"{name}={value!r}: write a list of {len(inner)}")
        items = [convert(inner[min(i, len(inner) - 1)], v, f"{name}[{i}]") for i, v in enumerate(value)]
        return get_origin(annotation)(items)
    if annotation in (int, str, bool) and type(value) is annotation:
        return value
    raise ConfigError(f"{name}={value!r}: write {_spell(annotation)}")


def flags(cls: type[Any], prefix: str = "--") -> list[str]:
    """Returns a line for each field of a config: its flag, its values, its default."""
    hints, lines = get_type_hints(cls), list[str]()
    for field in (f for f in fields(cls) if f.init):
        annotation, name = hints[field.name], f"{prefix}{field.name}"
        options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
        if set(KINDS.values()) <= set(options):
            lines.append(f"{name}  {' | '.join(KINDS)}")
            for kind, config in KINDS.items():
                lines += [f"{line}  ({kind})" for line in flags(config, f"{name}.")]
            continue
        inner = [o for o in options if is_dataclass(o)]
        for option in inner:
            lines += flags(cast("type[Any]", option), f"{name}.")
        if not inner:
            default = field.default_factory() if callable(field.default_factory) else field.default
            shown = "" if default is MISSING else f"  [{default}]"
            lines.append(
                f"{name}  {' | '.join(dict.fromkeys(_spell(o) for o in options if o is not type(None)))}{shown}"
            )
    return lines


def _strategy(value: Any, name: str) -> Any:
    """Builds `strategy: fsdp` or `strategy: {kind: fsdp, cpu_offload: true}`."""
    tree = {"kind": value} if isinstance(value, str) else dict(value) if isinstance(value, dict) else {}
    kind = tree.pop("kind", "ddp" if tree else None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{name}={value!r}: write one of {', '.join(KINDS)}, or a mapping with kind and its options")
    return build(KINDS[kind], tree, f"{name}.")


def _spell(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(str(a) for a in get_args(annotation))
    if get_origin(annotation) in (list, tuple):
        inner = get_args(annotation)[0]
        return "a list of mappings" if is_dataclass(inner) else f"a list of {_spell(inner)}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}
    return names.get(annotation, str(annotation))
