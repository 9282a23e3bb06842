"""The third-party modules that a job's script imports: what one attempt has imported, the next one finds imported.

The first worker of a pod writes the names after its first optimizer step; where no step is counted, when the script
seems to have imported all; at its end at the latest. The warm process keeps them with the packages that it must leave
out. Both files stand in the agent's state dir, so they survive a restart of the container.
"""

from __future__ import annotations

import _thread
import atexit
import json
import os
import sys
import time
from types import MappingProxyType, ModuleType
from typing import Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from dtj_agent.warm import script
from dtj_agent.warm.script_changes import ScriptChanges, is_installed, package
from dtj_agent.warm.seeds import Seeds

IMPORTS_FILE = "imports.json"  # a worker's
LEARNED_FILE = "learned.json"  # the warm process's
NEWS_FIFO = "imports.fifo"  # a byte for each new file of a worker
MAX_MODULES = 10_000
MAX_NAME = 200
MAX_FILE_BYTES = 2 * 1024 * 1024
# A script that imports nothing for so long has imported what its next start needs.
QUIET_SECONDS, MAX_WAIT_SECONDS = 10.0, 600.0
ARGUMENTS = "sys.argv"
"""Stands among the changed variables if the script has changed its arguments, or they are not known ahead."""
_OURS = ("dtj_agent", "dtj_contract", "dtj_trainer")


class Learned(NamedTuple):
    """The modules to import, in order, and the packages that are left out with the reasons."""

    modules: List[str]
    left_out: Dict[str, str]
    by_rank: FrozenSet[str] = frozenset()
    """Those of the packages left out that a process of one rank can import."""
    changed: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Variables that have been changed, with the packages whose imports have set each of them; none: the script has."""
    after_seed: FrozenSet[str] = frozenset()
    """The modules that were imported after Python's random numbers had been seeded."""

    def without(self, package: str, why: str, by_rank: bool) -> Learned:
        """Returns the same with one more package left out."""
        others = self.by_rank - {package}
        return self._replace(
            left_out={**self.left_out, package: why}, by_rank=others | {package} if by_rank else others
        )


def read(folder: str) -> Learned:
    """Returns what was kept, with what a worker has reported since."""
    kept, reported = _load(os.path.join(folder, LEARNED_FILE)), _load(os.path.join(folder, IMPORTS_FILE))
    left_out = kept.get("leftOut")
    reasons = {str(key): str(why) for key, why in left_out.items()} if isinstance(left_out, dict) else {}
    names = [*_names(kept.get("modules")), *_names(reported.get("modules"))]
    return Learned(
        list(dict.fromkeys(names))[:MAX_MODULES],
        reasons,
        frozenset(_names(kept.get("byRank"))) & reasons.keys(),
        _union(_changes(kept.get("changed")), _changes(reported.get("changed"))),
        frozenset([*_names(kept.get("afterSeed")), *_names(reported.get("afterSeed"))]),
    )


def known_arguments(found: Learned, command: Sequence[str]) -> Optional[List[str]]:
    """Returns sys.argv as the script's imports find it; None if that is not known."""
    return None if ARGUMENTS in found.changed else script.arguments(command)


def failure(folder: str) -> str:
    """Returns why the last worker could not find out what it has imported; "" if it could."""
    return str(_load(os.path.join(folder, IMPORTS_FILE)).get("error") or "")


def keep(folder: str, learned: Learned) -> None:
    """Writes the file of the warm process; a folder that takes none costs the next container what was learned."""
    content: Dict[str, object] = {"modules": learned.modules, "leftOut": learned.left_out}
    content.update(byRank=sorted(learned.by_rank), changed=dict(learned.changed))
    content.update(afterSeed=sorted(learned.after_seed))
    _replace(os.path.join(folder, LEARNED_FILE), content)


def report_of(folder: str, command: Sequence[str], before: "frozenset[str]") -> Callable[[], None]:
    """Returns a function that writes once what this worker has imported beside `before`; it runs at the exit at the
    latest.
    """
    changes, seeds, worker = ScriptChanges(users_package(command)), Seeds(), os.getpid()
    done = False

    def report() -> None:
        nonlocal done
        if done or os.getpid() != worker:  # a process that the script has forked
            return
        done = True
        atexit.unregister(report)
        try:
            seeds.end()
            changed, found = changes.end(), third_party(before, command)
            if list(sys.argv) != script.arguments(command):
                changed[ARGUMENTS] = []
            content: Dict[str, object] = {"modules": found, "changed": changed}
            content.update(afterSeed=seeds.imported_after(found))
            if not found:
                return
        except Exception as error:  # noqa: BLE001 (the script may have replaced anything, and must not notice this)
            content = {"error": "%s: %s" % (type(error).__name__, str(error)[:MAX_NAME])}
        try:
            _replace(os.path.join(folder, IMPORTS_FILE), content)
            news = os.open(os.path.join(folder, NEWS_FIFO), os.O_WRONLY | os.O_NONBLOCK)
            os.write(news, b"\0")
            os.close(news)
        except Exception:  # noqa: BLE001 (no warm process listens)
            pass

    atexit.register(report)
    return report


def report_when_quiet(report: Callable[[], None]) -> None:
    """Calls `report` in a thread once no module has been imported for a while, where no step is counted."""

    def wait() -> None:
        count, end = 0, time.monotonic() + MAX_WAIT_SECONDS
        while count != len(sys.modules) and time.monotonic() < end:
            count = len(sys.modules)
            time.sleep(QUIET_SECONDS)
        report()

    _thread.start_new_thread(wait, ())  # which threading.enumerate() of the script does not list


def third_party(before: "frozenset[str]", command: Sequence[str]) -> List[str]:
    """Returns the installed modules in sys.modules that are not in `before` and not the user's, in their order."""
    users = users_package(command)
    found = []
    for name, module in list(sys.modules.items()):
        # Not isinstance(): a library of cffi claims the class of a module, and has no namespace of one.
        if name in before or not issubclass(type(module), ModuleType) or not _is_plain(name):
            continue
        if package(name) in users or name.partition(".")[0] in _OURS:
            continue
        # Not `module.__dict__`, which would load a lazy module.
        namespace = ModuleType.__getattribute__(module, "__dict__")
        path, spec = namespace.get("__file__"), namespace.get("__spec__")
        # An alias, as of a vendored module, can't be imported by that name.
        is_itself = getattr(spec, "name", None) == name
        if is_itself and isinstance(path, str) and is_installed(path):
            found.append(name)
    return found[:MAX_MODULES]


def users_package(command: Sequence[str]) -> Tuple[str, ...]:
    """Returns the package of `-m MODULE`, which is user code also where it is installed."""
    place, is_module = script.split(command)
    return (package(command[place]),) if is_module else ()


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME and all(part.isidentifier() for part in name.split("."))


def _union(first: Dict[str, List[str]], second: Dict[str, List[str]]) -> Dict[str, List[str]]:
    """Returns who has set each variable; what the script has set once is the script's."""
    found = {name: sorted({*by, *second.get(name, by)}) for name, by in first.items()}
    script = {name for each in (first, second) for name, by in each.items() if not by}
    return {**second, **found, **{name: [] for name in script}}


def _changes(value: object) -> Dict[str, List[str]]:
    found = value if isinstance(value, dict) else {}
    return {str(name): list(map(str, by)) for name, by in found.items() if isinstance(by, list)}


def _names(value: object) -> List[str]:
    return [name for name in value if _is_plain(name)] if isinstance(value, list) else []


def _load(path: str) -> Dict[str, object]:
    try:
        with open(path, "rb") as file:
            found: Optional[object] = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _replace(path: str, content: object) -> None:
    try:
        with open(path + ".new", "w") as file:
            json.dump(content, file)
        os.replace(path + ".new", path)
    except OSError:
        pass
