"""The flags that are lists."""

from __future__ import annotations

import pytest

from dtj_operator.errors import OptionError
from dtj_operator.settings import AGENT_RESOURCES, resources


def test_agent_resources_are_a_list_of_quantities_or_none() -> None:
    assert resources(AGENT_RESOURCES) == {"cpu": "100m", "memory": "64Mi"}
    assert resources("cpu=1,memory=0.5Gi,ephemeral-storage=1G") == {
        "cpu": "1",
        "memory": "0.5Gi",
        "ephemeral-storage": "1G",
    }
    assert resources("none") == {}


@pytest.mark.parametrize("text", ["", "cpu", "cpu=", "=1", "cpu=1,", "cpu=lots", "cpu=1;memory=2", "cpu=-1"])
def test_malformed_agent_resources_are_rejected_with_a_remedy(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"--agent-resources: .* such as cpu=100m,memory=64Mi; write such a list, or none"
    ):
        resources(text)
