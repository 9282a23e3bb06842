"""Runs a script or module as `python3 SCRIPT` or `python3 -m MODULE` would, in a `__main__` of its own."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import json
import os
import runpy
import sys
import time
import traceback
from types import ModuleType, TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

MAX_RECORDED = 4096


def split(command: Sequence[str]) -> Tuple[int, bool]:
    """Returns the place of the script or module in a Python command, and whether it is a module.

    The agent has checked that the command has one of them.
    """
    place = 1
    while command[place].startswith("-"):
        if command[place] == "-m":
            return place + 1, True
        place += 2 if command[place] in ("-X", "-W") else 1
    return place, False


def folder(command: Sequence[str]) -> Optional[str]:
    """Returns what the interpreter would put first into sys.path; None if its options rule that out."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return None
    place, is_module = split(command)
    return os.getcwd() if is_module else os.path.dirname(os.path.realpath(command[place]))


def arguments(command: Sequence[str]) -> Optional[List[str]]:
    """Returns what sys.argv is in the script; None for a module, whose path the interpreter puts there."""
    place, is_module = split(command) if command else (0, True)
    return None if is_module else list(command[place:])


def shadowed(command: Sequence[str]) -> Optional[str]:
    """Returns why the modules here may be others than those that the script would import; None if they aren't."""
    where = folder(command)
    if where is None:
        return None
    # A built-in module can't be hidden.
    loaded = set(sys.modules).difference(sys.builtin_module_names, ["__main__"])
    try:
        # The folder may be large, and on a slow volume: only names that matter are looked at.
        named = [(entry.partition(".")[0], os.path.join(where, entry)) for entry in os.listdir(where)]
        found = {name for name, path in named if name in loaded and _is_importable(path)}
    except OSError:
        return None
    taken = sorted(name for name in found & loaded if not _is_from(sys.modules[name], where))
    return "%s hides the module %s" % (where, taken[0]) if taken else None


def _is_importable(path: str) -> bool:
    if path.endswith((".py", ".so")):
        return True
    return os.path.isfile(os.path.join(path, "__init__.py"))


def _is_from(module: Any, where: str) -> bool:
    origin = getattr(module, "__file__", None)
    return isinstance(origin, str) and os.path.realpath(origin).startswith(where + os.sep)


def run(command: Sequence[str]) -> None:
    """Runs the command's script to its end; what it raises ends the process as usual."""
    place, is_module = split(command)
    first = folder(command)
    if first is not None:
        sys.path.insert(0, first)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = list(command)
    target = command[place]
    if is_module:
        sys.argv[:] = ["-m", *command[place + 1 :]]
        _new_main()
        _carry_out(lambda: runpy._run_module_as_main(target))  # type: ignore[attr-defined]
    else:
        sys.argv[:] = list(command[place:])
        _carry_out(lambda: _run_script(target))


def _run_script(path: str) -> None:
    absolute = os.path.abspath(path)
    try:
        with io.open_code(absolute) as file:
            source = file.read()
    except OSError as error:
        text = "%s: can't open file %r: [Errno %s] %s"
        print(text % (sys.executable, absolute, error.errno, error.strerror), file=sys.stderr)
        sys.exit(2)
    namespace = _new_main()
    namespace["__file__"] = absolute
    namespace["__cached__"] = None
    namespace["__loader__"] = importlib.machinery.SourceFileLoader("__main__", absolute)
    code = compile(source, absolute, "exec", dont_inherit=True)
    exec(code, namespace)


def _new_main() -> Dict[str, Any]:
    """Puts a new module `__main__` in place, and returns its namespace as the interpreter makes it before a script.

    The warm process has frozen its own `__main__`, so no collection would ever find the cycle of that
    namespace with a script's functions: the files that a script leaves open would not be flushed at its end.
    `gc.unfreeze` at the exit would do too, but that collection looks at all objects of the imports: 1.3 s
    of processor time a rank.
    """
    before, main = sys.modules["__main__"].__dict__, ModuleType("__main__")
    # A module that the warm process has imported may hold the old one.
    before.clear()
    before["__getattr__"] = lambda name: getattr(main, name)
    sys.modules["__main__"] = main
    main.__dict__.update({"__annotations__": {}, "__builtins__": builtins})
    return main.__dict__


def _carry_out(what: Callable[[], None]) -> None:
    try:
        what()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 (reported as the interpreter would)
        _record(error)
        _report(error.with_traceback(_of_user(error.__traceback__)))
        sys.exit(1)


def _record(error: BaseException) -> None:
    """Writes the error to the rank's error file, as torch's `@record` does, unless that was there first.

    The agent then knows that the script did not handle the error.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.lexists(path):
        return
    try:
        found = traceback.TracebackException(type(error), error, None)
        vars(found).update(__notes__=None)  # which would stand behind the error
        last = list(found.format_exception_only())[-1].strip()
        stack = "".join(traceback.format_exception(type(error), error, _of_user(error.__traceback__)))
        extra = {"py_callstack": stack[-MAX_RECORDED:], "timestamp": str(int(time.time()))}
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({"message": {"message": last[:MAX_RECORDED], "extraInfo": extra}}, file)
    except Exception:  # noqa: BLE001 (a full disk, or an error whose own text raises)
        pass


def _of_user(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    """Returns the traceback without the frames of this file."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _report(error: BaseException) -> None:
    """Reports an error through the hook that the script may have replaced."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failure:  # noqa: BLE001 (as the interpreter does with a broken hook)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        sys.__excepthook__(type(error), error, error.__traceback__)
