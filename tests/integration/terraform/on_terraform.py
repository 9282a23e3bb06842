"""The modules of terraform/ under the real terraform, and what they give to helm and to the operator.

`hack/terraform.sh` copies the modules to build/terraform/tree, configures the source of providers, and runs this file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_core import api
from hack.cluster.versions import KUBERNETES
from tests.integration.chart.conftest import Kubectl, kubectl, plane  # noqa: F401 (fixtures)
from tests.integration.chart.kit import CHART, NAMESPACE, helm

ROOT = Path(__file__).parents[3]
TREE = ROOT / "build/terraform/tree/terraform"
MODULES = ["aws/shape", "values", "aws"]
HCL = re.compile(r"^```hcl\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Object = dict[str, Any]


def terraform(module: str, *arguments: str, stdin: str = "", timeout: float = 600) -> subprocess.CompletedProcess[str]:
    command = ["terraform", *arguments]
    if arguments[0] != "fmt":
        command.append("-no-color")
    return subprocess.run(
        command, cwd=TREE / module, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )


def ready(module: str) -> None:
    """Initializes a module, or skips the test where a provider of the module can't be had."""
    done = terraform(module, "init", "-input=false")
    if done.returncode and "Failed to query available provider packages" in done.stderr:
        missing = ", ".join(sorted(set(re.findall(r"provider\s+\S*hashicorp/(\w+)", done.stderr))))
        pytest.skip(f"terraform/{module} was not checked: neither a registry nor a mirror has the provider {missing}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def states() -> dict[str, Object]:
    """Returns the state that each run of the tests of terraform/aws has applied, by the run's name."""
    ready("aws")
    done = terraform("aws", "test", "-json", "-verbose", "-filter=tests/cluster.tftest.hcl")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, [line["@message"] for line in lines if line["@level"] == "error"]
    return {line["@testrun"]: line["test_state"] for line in lines if line["type"] == "test_state"}


def resource(state: Object, address: str) -> Object:
    [found] = [each["values"] for each in state["root_module"]["resources"] if each["address"] == address]
    return dict(found)


def test_files_are_formatted() -> None:
    done = terraform("", "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", [*sorted((ROOT / "terraform").rglob("*.md")), ROOT / "docs/clouds.md"], ids=str)
def test_hcl_of_a_page_is_formatted(page: Path) -> None:
    for block in HCL.findall(page.read_text()):
        done = terraform("", "fmt", "-check", "-diff", "-", stdin=block)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_module_is_valid(module: str) -> None:
    ready(module)
    done = terraform(module, "validate")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_module_passes_its_tests(module: str) -> None:
    ready(module)
    done = terraform(module, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Success! [1-9]\d* passed, 0 failed", done.stdout), done.stdout


def rendered(state: Object, namespace: str, folder: Path) -> list[Object]:
    """Returns the chart's objects with the values that terraform gives to helm."""
    release = resource(state, "helm_release.dtj")
    files = []
    for number, text in enumerate(release["values"]):
        (folder / f"{number}.yaml").write_text(text)
        files += ["-f", str(folder / f"{number}.yaml")]
    done = helm("template", "dtj", str(CHART), "-n", namespace, "--kube-version", f"v{KUBERNETES}", *files)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.mark.parametrize("run", ["smallest", "efa_with_lustre", "more_values_take_precedence"])
def test_chart_accepts_the_values(states: dict[str, Object], run: str, tmp_path: Path) -> None:
    images = {
        container["image"]
        for each in rendered(states[run], "dtj-system", tmp_path)
        if each["kind"] in ("Deployment", "Job")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert {image.rpartition("/")[0] for image in images} == {"111122223333.dkr.ecr.us-west-2.amazonaws.com/you"}


@pytest.mark.parametrize("run", ["smallest", "efa_with_lustre"])
def test_api_server_accepts_the_objects_of_the_claim(
    states: dict[str, Object],
    run: str,
    tmp_path: Path,
    kubectl: Kubectl,  # noqa: F811 (the fixture)
) -> None:
    kinds = ("StorageClass", "PersistentVolume", "PersistentVolumeClaim", "Job")
    objects = [each for each in rendered(states[run], NAMESPACE, tmp_path) if each["kind"] in kinds]
    assert len(objects) >= 2
    answer = kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("(server dry run)") == len(objects)


@pytest.mark.parametrize("run", ["smallest", "efa_with_lustre", "nodes_that_an_autoscaler_starts"])
def test_first_job_is_one_that_the_operator_accepts(states: dict[str, Object], run: str) -> None:
    job = yaml.safe_load(states[run]["outputs"]["job"]["value"])
    spec = api.validate(job).spec
    gpus = int(states[run]["outputs"]["gpus_per_node"]["value"])
    assert spec.processes == gpus


def test_copy_is_that_of_this_tree() -> None:
    """Fails if this file is run without hack/terraform.sh, on an old copy."""
    assert "TF_CLI_CONFIG_FILE" in os.environ
    for path in (ROOT / "terraform").rglob("*.tf"):
        assert (TREE / path.relative_to(ROOT / "terraform")).read_text() == path.read_text()
