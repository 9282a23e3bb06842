"""The flags and variables of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_operator import settings
from dtj_operator.errors import OptionError
from dtj_operator.settings import AGENT_RESOURCES, resources


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32 + b"\n")
    return path


def test_flag_is_also_a_variable_and_the_flag_wins(key: Path) -> None:
    environ = {
        "DTJ_OPERATOR_AGENT_IMAGE": "from-env",
        "DTJ_OPERATOR_MASTER_KEY_FILE": str(key),
        "DTJ_OPERATOR_WORKERS": "3",
        "DTJ_OPERATOR_NAMESPACE": "a,b",
    }
    options = settings.parse([], environ)
    assert (options.settings.agent_image, options.workers, options.namespaces) == ("from-env", 3, ("a", "b"))
    assert options.settings.master_key == b"k" * 32
    assert settings.parse(["--agent-image", "flag"], environ).settings.agent_image == "flag"
    assert settings.parse(["--namespace", "c"], environ).namespaces == ("c",)


def test_every_flag_has_its_variable() -> None:
    described = settings._parser().format_help()
    assert {line.split()[0] for line in described.splitlines() if line.startswith("  --")} == {
        "--" + f for f in settings.FLAGS
    }


def test_leader_election_is_on_and_its_lease_is_in_the_pods_namespace(key: Path, tmp_path: Path) -> None:
    required = ["--agent-image", "i", "--master-key-file", str(key)]
    options = settings.parse(required, {})
    assert options.leader_election
    assert (options.timing.lease_seconds, options.timing.renew_seconds, options.timing.retry_seconds) == (10, 7, 2)
    assert (options.lease_name, options.claims_namespace) == ("dtj-operator", "kube-system")
    assert not settings.parse([*required, "--leader-election=false"], {}).leader_election
    assert settings.parse([*required, "--claims-namespace", "none"], {}).claims_namespace is None
    (tmp_path / "namespace").write_text("dtj-system\n")
    assert settings.pod_namespace(tmp_path / "namespace") == "dtj-system"
    assert settings.pod_namespace(tmp_path / "missing") == "default"


def test_no_namespace_flag_means_all_namespaces(key: Path) -> None:
    assert settings.parse(["--agent-image", "i", "--master-key-file", str(key)], {}).namespaces == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--master-key-file", "/nowhere"], "--master-key-file: /nowhere can't be read"),
        (["--master-key-file", "/dev/null"], "holds 0 bytes; it must hold 32"),
        (["--workers", "0"], "--workers is 0; it must be 1 or more"),
        (["--renew-deadline-seconds", "10"], "--renew-deadline-seconds 10 .*a second shorter than the duration"),
        (["--retry-period-seconds", "4"], "--retry-period-seconds 4; .*twice the retry period"),
        (["--retry-period-seconds", "0"], "--retry-period-seconds 0"),
        (["--resync-seconds", "0.1"], "--resync-seconds is 0.1; it must be 1 or more"),
    ],
)
def test_invalid_setting_is_rejected_with_its_name_and_a_remedy(key: Path, change: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        settings.parse(["--agent-image", "i", "--master-key-file", str(key), *change], {})


def test_master_key_is_in_no_repr(key: Path) -> None:
    assert "kkkk" not in repr(settings.parse(["--agent-image", "i", "--master-key-file", str(key)], {}))


def test_agent_resources_are_a_list_of_quantities_or_none() -> None:
    assert resources(AGENT_RESOURCES) == {"cpu": "100m", "memory": "64Mi"}
    assert resources("cpu=1,memory=0.5Gi,ephemeral-storage=1G") == {
        "cpu": "1",
        "memory": "0.5Gi",
        "ephemeral-storage": "1G",
    }
    assert resources("none") == {}


def test_pull_secrets_of_the_agent_are_a_list_of_names(key: Path) -> None:
    given = ["--agent-image", "i", "--master-key-file", str(key)]
    assert settings.parse(given, {}).settings.agent_pull_secrets == ()
    assert settings.parse([*given, "--agent-pull-secrets=a,b"], {}).settings.agent_pull_secrets == ("a", "b")


def test_agent_is_delivered_by_an_init_container_unless_the_flag_says_otherwise(key: Path) -> None:
    given = ["--agent-image", "i", "--master-key-file", str(key)]
    assert settings.parse(given, {}).settings.agent_delivery == "init-container"
    variable = {"DTJ_OPERATOR_AGENT_DELIVERY": "image-volume"}
    assert settings.parse(given, variable).settings.agent_delivery == "image-volume"


@pytest.mark.parametrize("text", ["", "cpu", "cpu=", "=1", "cpu=1,", "cpu=lots", "cpu=1;memory=2", "cpu=-1"])
def test_malformed_agent_resources_are_rejected_with_a_remedy(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"--agent-resources: .* such as cpu=100m,memory=64Mi; write such a list, or none"
    ):
        resources(text)
