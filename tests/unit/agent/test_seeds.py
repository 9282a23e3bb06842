"""The functions of `random` are as a script knows them while their calls are noted."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtj_agent.warm.seeds import Seeds


@pytest.fixture
def seeds() -> Iterator[Seeds]:
    state, noting = random.getstate(), Seeds()
    yield noting
    noting.end()
    random.setstate(state)


@pytest.mark.parametrize("name", ["seed", "setstate"])
@pytest.mark.parametrize("copied", [lambda given: pickle.loads(pickle.dumps(given)), copy.copy])
def test_noted_function_is_copied_and_sent_to_processes_as_before(
    seeds: Seeds, name: str, copied: Callable[[Any], Any]
) -> None:
    noted = getattr(random, name)
    assert copied(noted).__name__ == name
    assert noted.__self__ is seeds._own[name].__self__
    assert not seeds.called
    seeds.end()
    assert copied(noted).__name__ == name, "a script may keep it"


def test_first_call_is_noted_and_has_its_effect(seeds: Seeds) -> None:
    random.seed(3)
    first = random.random()
    assert seeds.called
    seeds.end()
    random.seed(3)
    assert random.random() == first
