"""Imports modules into the warm process, and detects those that must not be in a process that is forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import random
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")

Send = Callable[[Dict[str, Any]], None]


def is_installed(name: str) -> bool:
    """Returns whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def preload(needed: Sequence[str], modules: Sequence[str], left_out: Sequence[str], send: Send) -> bool:
    """Imports the engine's modules, those of them that there are, and `modules`, less those that are left out.

    Returns False if a module makes this process unfit to be forked; `unfit` has then been sent, and
    the process must be replaced by one that leaves this module out.
    """
    with _collector_held_off():
        if not _import_all(
            needed, left_out, lambda message: None if "leftOut" in message else send(message), may_draw=True
        ):
            return False
        _collect_and_freeze()
    # The user's modules may read the collector's threshold, and set another that follows from it.
    if not _import_all(modules, left_out, send, may_draw=False):
        return False
    _collect_and_freeze()
    return True


def _collect_and_freeze() -> None:
    # An optimizer that the import of torch has left as garbage would count as one of the script's.
    gc.collect()
    # Otherwise a collection in a worker would write to, and so copy, every page with objects.
    gc.freeze()


@contextlib.contextmanager
def _collector_held_off() -> Iterator[None]:
    """Prevents collections, each of which would look at every object of the import, and most find nothing.

    The threshold does it and not `gc.disable`, which an import may itself use and read. An import that sets
    the threshold keeps its effect.
    """
    threshold = gc.get_threshold()
    gc.set_threshold(0, *threshold[1:])
    held = gc.get_threshold()
    try:
        yield
    finally:
        if gc.get_threshold() == held:
            gc.set_threshold(*threshold)


def _import_all(modules: Sequence[str], left_out: Sequence[str], send: Send, *, may_draw: bool) -> bool:
    for name in modules:
        if name in left_out:
            continue
        send({"importing": name})
        drawn = random.getstate()
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 (an import may raise anything, SystemExit too)
            why = "%s: %s" % (type(error).__name__, str(error)[:200])
            missing = isinstance(error, ModuleNotFoundError) and (name + ".").startswith("%s." % error.name)
            if not missing:
                # Its parts stay imported, and a second import of them may fail with another error.
                send({"unfit": name, "why": "raises when it is imported (%s)" % why})
                return False
            send({"leftOut": name, "why": why})
        obstacle = unfit()
        if obstacle is None and not may_draw and random.getstate() != drawn:
            obstacle = "it draws random numbers when it is imported, which ranks must not share"
        if obstacle is not None:
            send({"unfit": name, "why": obstacle})
            return False
    return True


def unfit() -> Optional[str]:
    """Returns why this process can't be forked: threads of its own or an initialised accelerator."""
    threads = lasting_threads()
    if threads > 1:
        return "it has started %d threads" % (threads - 1)
    return open_accelerator()


def open_accelerator() -> Optional[str]:
    """Returns which accelerator this process has opened or initialised."""
    device = _open_device()
    if device is not None:
        return "it has opened %s" % device
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return "it has initialised CUDA" if cuda is not None and cuda.is_initialized() else None


def lasting_threads() -> int:
    """Returns the number of threads that a fork would find.

    OpenBLAS starts threads when numpy is imported, and ends them in a handler before each fork.
    Only a fork shows whether threads are of that kind.
    """
    if _threads() > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of a fork with threads
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _threads()


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _open_device() -> Optional[str]:
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + number)
        except OSError:
            continue  # the folder's own descriptor
        if target.startswith(_ACCELERATORS):
            return target
    return None
