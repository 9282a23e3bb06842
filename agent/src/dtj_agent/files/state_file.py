"""The agent's state dir: its files survive restarts of the container, but not of the pod."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Optional

from dtj_agent.errors import SettingsError
from dtj_agent.group import outcome
from dtj_contract import names

Json = Dict[str, Any]

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class StateDir:
    """The state and outcome of one job's agent, and the termination message. A failed write is logged, not raised."""

    def __init__(self, folder: str, uid: str, termination_log: str, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._uid = uid
        self._termination_log = termination_log
        self._log = log

    def load_state(self) -> Json:
        return load_state(self._folder, self._uid)

    def load_outcome(self) -> Optional[Json]:
        return load_outcome(self._folder, self._uid)

    def save_state(self, state: Json) -> None:
        try:
            save_state(self._folder, state)
        except OSError as error:
            self._log("%s: can't save the state: %s" % (names.ENV_STATE_DIR, error))

    def save_outcome(self, final: Json) -> None:
        try:
            save_outcome(self._folder, final)
        except OSError as error:
            self._log("%s: can't save the outcome: %s" % (names.ENV_STATE_DIR, error))

    def delete_outcome(self) -> None:
        try:
            delete_outcome(self._folder)
        except OSError as error:
            self._log("%s: can't delete the outcome: %s" % (names.ENV_STATE_DIR, error))

    def write_termination_message(self, final: Json) -> None:
        """Writes the outcome where the kubelet reads it."""
        problem = write_termination_message(self._termination_log, outcome.termination_message(final))
        if problem is not None:
            self._log("can't write the termination message: " + problem)


def load_state(folder: str, uid: str) -> Json:
    """Returns the state that the previous agent saved, `{}` if there is none or it is another job's.

    `rebooted`: the node has restarted since then. Raises SettingsError if the file can't be read.
    """
    state = _read(os.path.join(folder, names.STATE_FILE), uid)
    return {} if state is None else {**state, "rebooted": state.get("boot") not in (None, _boot_id())}


def save_state(folder: str, state: Json) -> None:
    _replace(os.path.join(folder, names.STATE_FILE), json.dumps({**state, "boot": _boot_id()}).encode())


def load_outcome(folder: str, uid: str) -> Optional[Json]:
    """Returns the outcome that the previous agent saved, None if there is none or it is another job's.

    Raises SettingsError if the file can't be read.
    """
    return _read(os.path.join(folder, names.OUTCOME_FILE), uid)


def save_outcome(folder: str, final: Json) -> None:
    _replace(os.path.join(folder, names.OUTCOME_FILE), json.dumps(final).encode())


def delete_outcome(folder: str) -> None:
    """Deletes the outcome file, if there is one."""
    try:
        os.unlink(os.path.join(folder, names.OUTCOME_FILE))
    except FileNotFoundError:
        pass


def write_termination_message(path: str, message: bytes) -> Optional[str]:
    """Writes in place, because the kubelet has bind-mounted the file. Returns why the file could not be written."""
    try:
        with open(path, "wb") as file:
            file.write(message)
    except OSError as error:
        return "%s: %s" % (path, error.strerror)
    return None


def _boot_id() -> Optional[str]:
    """Returns what the kernel draws at each start (proc_sys_kernel(5)); None where there is no such file."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip() or None
    except OSError:
        return None


def _read(path: str, uid: str) -> Optional[Json]:
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        # The file is never torn, because it is replaced as a whole. A file that is not ours counts
        # as none.
        return None
    except OSError as error:
        raise SettingsError("%s: can't read %s (%s)" % (names.ENV_STATE_DIR, path, error.strerror)) from error
    return data if isinstance(data, dict) and data.get("uid") == uid else None


def _replace(path: str, data: bytes) -> None:
    """Replaces the file, without fsync: the page cache survives all that the state dir survives, except a power loss.

    After a power loss, an older state or none is read. The lease on the checkpoint volume keeps its attempts apart.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
