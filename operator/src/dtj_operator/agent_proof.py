"""How a request to an agent proves that it comes from the operator, and what is tried after a refusal. Pure.

Jobs run through what changes an operator: a replaced master key, another version. Nodes may have
clocks of their own. An agent that answers 401 is therefore asked again in another way, and the way
that worked is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from dtj_contract.status_token import LIFE_SECONDS, lasting_token, status_token

MOST_CLOCK_SECONDS = 86400
"""The farthest time that the operator signs because somebody at an agent's address shows such a clock."""
MOST_TRIES = 4
"""Requests of one question: as known, by the agent's clock, with the other key, with the other key by that clock."""


class Proof(NamedTuple):
    """The way in which an agent takes requests."""

    previous_key: bool = False
    """Whether the agent was started with the master key before the current one."""
    clock: int = 0
    """Seconds that the agent's clock is ahead."""
    lasting: bool = False
    """Whether the agent is older than tokens with a time."""

    def token(self, key: str, now: float, message: str) -> str:
        """Returns the bearer token. `key`: the job's, of the master key that `previous_key` chooses."""
        secret = key.encode()
        return lasting_token(secret) if self.lasting else status_token(secret, now + self.clock, message)


AS_NEW = Proof()
"""The way of an agent that was started by this version with the current key, on a node whose clock is right."""


def next_proof(
    refused: Proof, agent_time: float | None, now: float, tried: Collection[Proof], has_previous_key: bool
) -> Proof | None:
    """Returns what to try after `refused`; None if nothing is left.

    `agent_time`: the clock that the answer shows; older agents show none.
    """
    if len(tried) >= MOST_TRIES:
        return None
    return next((proof for proof in _others(refused, agent_time, now, has_previous_key) if proof not in tried), None)


def _others(refused: Proof, agent_time: float | None, now: float, has_previous_key: bool) -> Iterator[Proof]:
    if agent_time is None:
        refused = refused._replace(clock=0, lasting=True)
        yield refused
    else:
        refused = refused._replace(lasting=False)
        ahead = round(agent_time - now)
        # Half of the life, so that a token is not refused for the time that it travels.
        if abs(ahead - refused.clock) > LIFE_SECONDS / 2 and abs(ahead) <= MOST_CLOCK_SECONDS:
            refused = refused._replace(clock=ahead)
            yield refused
        yield refused
    if has_previous_key:
        yield refused._replace(previous_key=not refused.previous_key)
