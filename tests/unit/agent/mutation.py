"""Planted bugs: one changed piece of text each, tried in a forked process that has everything imported.

A child process gets the code of the patched module in place of the original functions, then runs
the unit tests that are named first, and then worlds of the simulator, until something fails. A child
that runs out of CPU time hangs, which counts as found.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import itertools
import os
import signal
import tomllib
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.agent.simulator import World

LIST = Path(__file__).with_name("mutations.toml")
GROUP = "dtj_agent.group."
CPU_SECONDS = 30
"""A child that takes longer hangs: all unit tests and seeds take a few seconds."""
WALL_SECONDS = 600
"""A child that takes longer stands still, which is an error of the run and finds nothing."""
MODULES = (
    "coordinator", "attempt_number", "member", "group_edges", "coordinator_history", "stuck", "restart_policy",
    "progress", "diagnosis", "saves", "failures", "effect_order", "connection_losses", "coordinator_work", "hang_watch",
    "restart_ladder", "restart_rules", "stragglers", "container_kills", "formation", "resize", "election",
    "leadership", "outrun", "hung_starts", "moving_pods", "charged_once", "witnesses", "ending", "success_policy",
)  # fmt: skip
"""The test modules that may find a bug; of these, the tests that need no fixture."""


class Mutation(NamedTuple):
    """One planted bug."""

    file: str
    """The module in dtj_agent.group, or the whole name of another module."""
    old: str
    new: str
    breaks: str
    """The effect of the bug."""
    tests: tuple[str, ...]
    """Test modules that are run first."""
    missed: str = ""
    """Why nothing finds the bug; "" for a bug that must be found."""

    @property
    def module(self) -> types.ModuleType:
        return importlib.import_module(self.file if "." in self.file else GROUP + self.file)

    @property
    def name(self) -> str:
        return f"{self.file}: {self.breaks}"


def mutations(path: Path = LIST) -> list[Mutation]:
    """Returns the list that is kept in mutations.toml, or in another file."""
    entries = tomllib.loads(path.read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def sample(planted: list[Mutation]) -> list[Mutation]:
    """Returns every fourth bug, because all of them take minutes; `make test-long` sets DTJ_MUTATIONS_EVERY to 1."""
    return planted[:: int(os.environ.get("DTJ_MUTATIONS_EVERY", "4"))]


def patched(mutation: Mutation) -> types.CodeType:
    """Returns the code of the module with the bug. Raises ValueError if the list is out of date."""
    module = mutation.module
    path = Path(str(module.__file__))
    source = path.read_text()
    if source.count(mutation.old) != 1:
        raise ValueError(f"the list is out of date: {mutation.name}: {mutation.old!r} is not once in {path.name}")
    return compile(source.replace(mutation.old, mutation.new), str(path), "exec", dont_inherit=True)


def plant(mutation: Mutation) -> None:
    """Puts the bug into the imported module of this process."""
    module = mutation.module
    fresh: dict[str, Any] = {"__name__": module.__name__, "__package__": module.__package__}
    exec(patched(mutation), fresh)
    old, new = dict(_functions(vars(module), module.__name__)), dict(_functions(fresh, module.__name__))
    changed = 0
    for name in old.keys() & new.keys():
        if not same(old[name].__code__, new[name].__code__):
            old[name].__code__ = new[name].__code__
            changed += 1
    for name, value in fresh.items():
        if isinstance(value, (int, float, str, tuple)) and vars(module).get(name) != value and name[0] != "_":
            setattr(module, name, value)
            changed += 1
    if not changed:
        raise ValueError(f"{mutation.name}: no function or constant of the module differs")


def same(one: Any, other: Any) -> bool:
    """Returns whether two codes or constants do the same; lines and columns may differ."""
    if not isinstance(one, types.CodeType) or not isinstance(other, types.CodeType):
        return type(one) is type(other) and bool(one == other)
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    constants = list(zip(one.co_consts, other.co_consts, strict=False))
    return len(one.co_consts) == len(other.co_consts) and all(same(*pair) for pair in constants)


def _functions(namespace: dict[str, Any], module: str) -> Iterator[tuple[str, types.FunctionType]]:
    """Yields the module's own functions and methods by qualified name."""
    for value in list(namespace.values()):
        if isinstance(value, types.FunctionType) and value.__module__ == module:
            yield value.__qualname__, value
        elif inspect.isclass(value) and value.__module__ == module:
            for attribute in vars(value).values():
                parts = (attribute.fget, attribute.fset) if isinstance(attribute, property) else (attribute,)
                for suffix, part in zip(("", "="), parts, strict=False):
                    function = getattr(part, "__func__", part)
                    if isinstance(function, types.FunctionType):
                        yield function.__qualname__ + suffix, function


# --- what is run ------------------------------------------------------------------------------------------------------


def cases(module: types.ModuleType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the module's tests that need no fixture, each with each of its parameters."""
    for name, test in vars(module).items():
        if not name.startswith("test_") or not isinstance(test, types.FunctionType):
            continue
        axes = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        keywords = [_keywords(*mark.args[:2]) for mark in axes]
        for chosen in itertools.product(*keywords):
            values = {key: value for part in chosen for key, value in part.items()}
            if set(values) == set(inspect.signature(test).parameters):
                yield name, lambda test=test, values=values: test(**values)  # type: ignore[misc]


def _keywords(names: str | tuple[str, ...], rows: Any) -> list[dict[str, Any]]:
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if len(names) == 1:
        return [{names[0]: row} for row in rows]
    return [dict(zip(names, row, strict=True)) for row in rows]


def load() -> dict[str, types.ModuleType]:
    """Imports the test modules once, before any child process."""
    return {name: importlib.import_module("tests.unit.agent.test_" + name) for name in MODULES}


def finder(modules: list[types.ModuleType], seeds: range, world: Callable[[int], Any] = World) -> str:
    """Returns the name of the first test or seed that fails; "" if none does."""
    for module in modules:
        for name, case in cases(module):
            if _fails(case):
                return f"{module.__name__.rpartition('.')[2]}.{name}"
    for seed in seeds:
        if _fails(world(seed).run):
            return f"seed {seed}"
    return ""


class Trial(AbstractContextManager["Trial"]):
    """Swallows whatever its body raises, pytest's own failures too, which are no Exceptions."""

    failed = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.failed = kind is not None
        return kind is not KeyboardInterrupt


def _fails(case: Callable[[], Any]) -> bool:
    with Trial() as trial:
        case()
    return trial.failed


def attempt(
    mutation: Mutation | None,
    modules: list[types.ModuleType],
    seeds: range,
    world: Callable[[int], Any] = World,
) -> str:
    """Returns what finds the bug in a child process; "" if nothing does; None plants no bug."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Finalizers of the parent's objects would wait for its threads, which the child does not have.
            gc.freeze()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WALL_SECONDS)
            # CPU time, not wall time: a busy machine hangs nobody.
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if mutation is not None:
                plant(mutation)
            os.write(writing, finder(modules, seeds, world).encode())
            os._exit(0)
        finally:
            os.write(writing, traceback.format_exc().encode())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGPROF:
        return "it hangs"
    if code:
        raise RuntimeError(f"{mutation.name if mutation else 'no mutation'}: {text or code}")
    return text


def search(mutation: Mutation, loaded: dict[str, types.ModuleType], seeds: range) -> str:
    """Returns what finds the bug: first the tests that the list names, then all others, then seeds."""
    rest = [name for name in MODULES if name not in mutation.tests]
    return attempt(mutation, [loaded[name] for name in (*mutation.tests, *rest)], seeds)


def main() -> None:
    """Prints what finds each planted bug."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="only bugs whose name holds one of these")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--simulator", action="store_true", help="only seeds: measures the simulator")
    arguments = parser.parse_args()
    loaded = load()
    for planted in mutations():
        if arguments.parts and not any(part in planted.name for part in arguments.parts):
            continue
        seeds = range(arguments.seeds)
        found = attempt(planted, [], seeds) if arguments.simulator else search(planted, loaded, seeds)
        print(f"{'found' if found else 'MISSED'}\t{planted.file}\t{planted.breaks}\t{found}", flush=True)


if __name__ == "__main__":
    main()
