"""Builds a model by a factory, and saves it as a program by torch.export.

The module of the factory gives the example inputs: `example_inputs()` returns the tuple of the model's positional
arguments. `dynamic_shapes` there, if it exists, is passed to torch.export.export; without it, the program takes inputs
of the examples' shapes alone.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj_trainer.checkpoint.weights import listed
from dtj_trainer.errors import ConfigError

EXAMPLE = "such as --model dtj_trainer.examples.digits:mlp"
INPUTS, SHAPES = "example_inputs", "dynamic_shapes"
METADATA_FILE = "dtj.json"
"""The entry of a .pt2 file that has step and job (`torch.export.load(file, extra_files={"dtj.json": ""})`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A model, and what its factory's module gives for it."""

    spelled: str
    model: nn.Module
    inputs: Callable[[], Any] | None
    shapes: Any


def build(spelled: str) -> Built:
    """Returns the model that `module:function` builds. Raises ConfigError, which names what is missing."""
    name, _, function = spelled.partition(":")
    if not name or not function:
        raise ConfigError(f"--model {spelled}: write module:function, {EXAMPLE}")
    try:
        module = importlib.import_module(name)
    except Exception as e:
        raise ConfigError(
            f"--model {spelled}: importing {name} failed: {type(e).__name__}: {e}; write a module that Python finds "
            f"(PYTHONPATH), {EXAMPLE}"
        ) from e
    factory = getattr(module, function, None)
    if not callable(factory):
        raise ConfigError(f"--model {spelled}: {name} has no function {function}; {EXAMPLE}")
    try:
        inspect.signature(factory).bind()
    except TypeError as e:
        raise ConfigError(f"--model {spelled}: {e}; write a function that needs no arguments") from e
    model = factory()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model {spelled} gave a {type(model).__name__}: return a torch.nn.Module")
    shapes = getattr(module, SHAPES, None)
    return Built(
        spelled=spelled,
        model=model.eval(),
        inputs=getattr(module, INPUTS, None),
        shapes=shapes() if callable(shapes) else shapes,
    )


def load(built: Built, state: Mapping[str, torch.Tensor], source: str, dtype: str | None) -> None:
    """Loads weights into the model, in `dtype` if there is one.

    Raises ConfigError that names the first weights that do not fit.
    """
    own = built.model.state_dict()
    problems = [
        f"{text} {listed(sorted(keys))}"
        for text, keys in (
            ("lacks", own.keys() - state.keys()),
            ("has unknown", state.keys() - own.keys()),
            ("has other shapes of", {key for key in own.keys() & state.keys() if own[key].shape != state[key].shape}),
        )
        if keys
    ]
    if problems:
        raise ConfigError(f"{source} does not fit --model {built.spelled}: it {'; it '.join(problems)}")
    if dtype:
        built.model.to(getattr(torch, dtype))
    built.model.load_state_dict(dict(state))


def save(built: Built, out: Path, metadata: Mapping[str, str], dtype: str | None) -> float:
    """Saves the model as a program, loads the file again and compares the outputs.

    Returns the greatest difference of an output. The file appears under its name after the comparison. Raises
    ConfigError if the module gives no inputs, if torch can't export the model, or if the outputs differ.
    """
    inputs = _inputs(built, dtype)
    temporary = out.with_name(f".{out.stem}.part{out.suffix}")  # torch asks for this end of the name
    try:
        with torch.no_grad():
            expected = built.model(*inputs)
            try:
                program = torch.export.export(built.model, inputs, dynamic_shapes=built.shapes)
                torch.export.save(
                    program,
                    temporary,
                    extra_files={METADATA_FILE: json.dumps({"torch": str(torch.__version__), **metadata})},
                )
            except OSError:
                raise
            except Exception as e:
                raise ConfigError(
                    f"--model {built.spelled}: torch.export can't export it: {type(e).__name__}: {_first_line(e)}"
                ) from e
            found = torch.export.load(temporary).module()(*inputs)
        difference = _compare(built, found, expected)
        temporary.rename(out)
    finally:
        temporary.unlink(missing_ok=True)
    return difference


def _inputs(built: Built, dtype: str | None) -> tuple[Any, ...]:
    module = built.spelled.partition(":")[0]
    if not callable(built.inputs):
        raise ConfigError(
            f"--model {built.spelled}: {module} has no function {INPUTS}; write one that returns a tuple of the "
            "model's arguments"
        )
    found = built.inputs()
    if not isinstance(found, tuple):
        raise ConfigError(f"{module}.{INPUTS} gave a {type(found).__name__}: return a tuple of the model's arguments")
    return tuple(
        one.to(getattr(torch, dtype)) if dtype and isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in found
    )


def _compare(built: Built, found: object, expected: object) -> float:
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except (AssertionError, TypeError, ValueError) as e:
        raise ConfigError(
            f"--model {built.spelled}: the saved program has other outputs than the model: {_first_line(e)}"
        ) from e
    pairs = zip(_tensors(found), _tensors(expected), strict=True)
    return max((_difference(one, other) for one, other in pairs), default=0.0)


def _tensors(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        tree = [tree[key] for key in sorted(tree, key=str)]
    return [one for each in tree for one in _tensors(each)] if isinstance(tree, list | tuple) else []


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if not one.numel():
        return 0.0
    return float((one.double() - other.double()).abs().nan_to_num().max())


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
