"""What an agent keeps in its state dir, which lives as long as the pod: through restarts of the container, not of the pod."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

from dtj_agent.errors import SettingsError
from dtj_contract import names

Json = Dict[str, Any]


def load_state(folder: str, uid: str) -> Json:
    """What the agent before this one saved, `{}` if there was none or it was another job's. Raise SettingsError."""
    return _read(os.path.join(folder, names.STATE_FILE), uid) or {}


def save_state(folder: str, state: Json) -> None:
    _replace(os.path.join(folder, names.STATE_FILE), json.dumps(state).encode())


def load_outcome(folder: str, uid: str) -> Optional[Json]:
    return _read(os.path.join(folder, names.OUTCOME_FILE), uid)


def save_outcome(folder: str, outcome: Json) -> None:
    _replace(os.path.join(folder, names.OUTCOME_FILE), json.dumps(outcome).encode())


def delete_outcome(folder: str) -> None:
    """Removes the outcome file, if there is one."""
    try:
        os.unlink(os.path.join(folder, names.OUTCOME_FILE))
    except FileNotFoundError:
        pass


def write_termination_message(path: str, message: bytes) -> Optional[str]:
    """The kubelet has bind-mounted the file: it is written in place. Return why it could not be."""
    try:
        with open(path, "wb") as file:
            file.write(message)
    except OSError as error:
        return "%s: %s" % (path, error.strerror)
    return None


def _read(path: str, uid: str) -> Optional[Json]:
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except (FileNotFoundError, ValueError):  # a torn file can't be: it is replaced whole; an alien one is as good as none
        return None
    except OSError as error:
        raise SettingsError("%s: %s can't be read (%s)" % (names.ENV_STATE_DIR, path, error.strerror)) from error
    return data if isinstance(data, dict) and data.get("uid") == uid else None


def _replace(path: str, data: bytes) -> None:
    """No fsync: the page cache survives everything that the state dir survives."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
