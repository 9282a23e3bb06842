"""The success policy of a simulated world: in some, rank 0 decides."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from dtj_contract import names

if TYPE_CHECKING:
    from tests.unit.agent.simulated import Worker
    from tests.unit.agent.simulator import World


class Success:
    """Knows which attempts may be the job's success.

    The choices come from a stream of their own: they change no other choice of a seed.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"success of {world.seed}")
        self.policy = names.SUCCESS_RANK_0 if self._rng.random() < 0.3 else names.SUCCESS_ALL
        world.spec = world.spec._replace(success_policy=self.policy)

    def ended(self, worker: Worker) -> None:
        """Lets some peers of a rank 0 that has succeeded fail, as they lose a connection."""
        if self.policy == names.SUCCESS_ALL or worker.rank != 0 or worker.exit_code != 0 or worker.requested:
            return
        for pod in self._world.everyone:
            for mate in pod.workers.values():
                if mate.attempt == worker.attempt and mate.exit_code is None and self._rng.random() < 0.5:
                    died = pod.life_of(partial(self._world.end, pod, mate, 1))
                    self._world.after(self._rng.uniform(0.0, 0.1), died)

    def check(self, attempt: int) -> None:
        """Fails the world if an attempt is not the success that the policy asks for."""
        ranks = self._world.group.get(attempt, {})
        if self.policy == names.SUCCESS_RANK_0:
            if 0 not in ranks or ranks[0].exit_code != 0:
                self._world.fail(f"attempt {attempt} has succeeded without rank 0: {ranks}")
            return
        codes = [worker.exit_code for worker in ranks.values()]
        if codes != [0] * self._world.sizes.workers(attempt):
            self._world.fail(f"attempt {attempt} has succeeded, but its workers ended with {codes}")
