"""The example jobs are valid, and name modules and flags that exist."""

from __future__ import annotations

import difflib
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj_contract import names
from dtj_core.api.read import validate
from dtj_trainer.cli import find_task
from dtj_trainer.config import TrainerConfig
from dtj_trainer.config_parser import build, override, read_yaml

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = {
    f"{path.name}: {job['metadata']['name']}": job
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for job in yaml.safe_load_all(path.read_text())
    if job.get("kind") == names.KIND
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_example_job_is_valid_and_its_command_parses(job: dict[str, Any]) -> None:
    validate(job)
    entrypoint = job["spec"].get("entrypoint", {})
    arguments = [str(a) for a in entrypoint.get("args", [])]
    if entrypoint.get("module") == "dtj_trainer.cli":
        assert arguments[0] == "--config"
        tree = read_yaml(mounted(job, arguments[1]))
        override(tree, arguments[2:])
        find_task(tree.pop("task"))
        del tree["arguments"]
        build(TrainerConfig, tree)
    elif "module" in entrypoint:
        importlib.import_module(entrypoint["module"]).parser().parse_args(arguments)
    else:
        assert mounted(job, entrypoint["script"]).is_file()


def mounted(job: dict[str, Any], path: str) -> Path:
    """Returns the file that `path` means, in a pod and locally; the job file's command mounts it."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert str(Path(container["workingDir"], path).parent) == mount["mountPath"]
    says = f"#   kubectl create configmap {volume['configMap']['name']} --from-file={path} && "
    assert any(
        line.startswith(says) for line in (EXAMPLES / f"{job['metadata']['name']}.yaml").read_text().splitlines()
    ), says
    return EXAMPLES.parent / path


def test_own_loop_is_the_bare_loop_with_an_import_and_three_lines() -> None:
    """The documentation shows the same lines."""
    before, after = ((EXAMPLES / "own_loop" / f).read_text().splitlines() for f in ("before.py", "train.py"))
    changed = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if re.match(r"[+-][ \w]", line)]
    assert [re.split(r" import |[(=]", line)[0].strip() for line in changed] == [
        "+from dtj_trainer",
        "+state",
        "-for step in range",
        "+for step in state.steps",
        "+    state.report",
    ]
    page = (EXAMPLES.parent / "docs" / "trainer.md").read_text()
    assert "\n".join(("```diff", *changed, "```")) in page
