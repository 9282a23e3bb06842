"""The messages between agents, and the fields that every inbound message must hold. Pure.

A member dials the coordinator (election.py finds it; the one in the same process too) and sends
`hello`. An agent that does not coordinate answers with `known`, and closes. Otherwise, from then on:

    member -> coordinator   failed, done, stopped, stuck, progress, event, leaving, holds, finished, promised, beat
    coordinator -> member   start, stop, hold, finish, history, promise, remember, beat
    anyone -> anyone        announce, answered by `known`: where an agent and the coordinator are

A beat of a member may hold `attempt`, `ranks` (vitals.py), `stacks` (rank -> text), `warming` (its
warm process still imports) and `rankZeroDone` (success_policy.py); one of the coordinator may hold `stacks`,
the attempt whose stacks it requests. Agents of older versions ignore these keys. `remember` goes only to agents
whose hello holds `remembers`.

The coordinator's `start`, `history` and beats hold its `epoch` (election.py).

`attempt` fences: an agent drops every message about another attempt than its own.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple, Union

from dtj_agent.errors import WireError
from dtj_contract import names

Message = Dict[str, Any]

PROTOCOL_VERSION = 2

# states of a member
IDLE, RUNNING, STOPPING, DONE, FINISHED = "idle", "running", "stopping", "done", "finished"
STUCK = names.MEMBER_STUCK  # stopping, and SIGKILL does not end it


class Now(NamedTuple):
    """One reading of both clocks: `mono` measures, `wall` (Unix seconds) is only written down."""

    mono: float
    wall: float


_INT: Tuple[type, ...] = (int,)
_REQUIRED: Dict[str, Dict[str, Tuple[type, ...]]] = {
    "hello": {"uid": (str,), "ordinal": _INT, "incarnation": (str,), "pod": (str,), "node": (str,),
              "address": (str,), "port": _INT, "state": (str,), "attempt": _INT, "history": (dict,),
              "crashed": (bool,)},
    "announce": {"uid": (str,), "ordinal": _INT, "incarnation": (str,), "address": (str,), "agentPort": _INT},
    "known": {},
    "start": {"attempt": _INT, "nodeRank": _INT, "nodes": _INT, "masterAddr": (str,), "masterPort": _INT,
              "history": (dict,)},
    "stop": {"attempt": _INT, "grace": (int, float)},
    "hold": {"outcome": (dict,)},
    "finish": {"outcome": (dict,)},
    "history": {"history": (dict,)},
    "promise": {"attempt": _INT},
    "remember": {"attempt": _INT},
    "promised": {"attempt": _INT, "granted": (bool,), "known": _INT},
    "failed": {"attempt": _INT, "failures": (list,)},
    "done": {"attempt": _INT, "port": _INT},
    "stopped": {"attempt": _INT, "port": _INT},
    "stuck": {"attempt": _INT, "what": (str,)},
    "progress": {"attempt": _INT, "progress": (dict,)},
    "event": {"event": (dict,)},
    "leaving": {"grace": (int, float)},
    "holds": {},
    "finished": {},
    "beat": {},
}  # fmt: skip


def check(message: Union[Message, Any]) -> Message:
    """Returns the message.

    Raises WireError if its type or a field that is read unchecked is wrong.
    """
    if not isinstance(message, dict):
        raise WireError("a message must be a JSON object")
    required = _REQUIRED.get(str(message.get("type")))
    if required is None:
        raise WireError("unknown message type %.40r" % message.get("type"))
    for field, types in required.items():
        value = message.get(field)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise WireError("message %s: field %s is %.40r" % (message["type"], field, value))
    return message
