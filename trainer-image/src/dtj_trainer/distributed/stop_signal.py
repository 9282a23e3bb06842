"""SIGTERM as the request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from typing import Any

from dtj_contract import names


def catch(stop: threading.Event) -> Any:
    """Sets `stop` on SIGTERM from now on.

    Returns the previous handler, for `release`; None outside the main thread, where no handler can
    be set.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    _show_collective_stop(lambda *_: None)
    return signal.signal(signal.SIGTERM, lambda *_: stop.set())


def release(previous: Any) -> None:
    """Gives SIGTERM its previous handler back."""
    if previous is not None:
        _show_collective_stop(signal.SIG_DFL)
        signal.signal(signal.SIGTERM, previous)


def _show_collective_stop(handler: Any) -> None:
    """Shows the agent, by a handler, that the one for SIGTERM saves nothing unless all ranks live."""
    if names.COLLECTIVE_STOP_SIGNAL in signal.valid_signals():
        signal.signal(names.COLLECTIVE_STOP_SIGNAL, handler)
