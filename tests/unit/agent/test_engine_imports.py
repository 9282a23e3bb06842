"""A warm process of an engine without torch begins with nothing, and learns the framework from the first attempt."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.warm import learned
from tests.unit.agent.test_warm import drive
from tests.unit.agent.warm_site import write_framework

SCRIPT = "import sys; print('framework.core' in sys.modules, 'torch' in sys.modules)\nimport framework.core\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib" / "site-packages"
    write_framework(folder)
    return folder


def run(text: str, site: Path, tmp_path: Path, engine: str = "jax") -> Any:
    """Runs two attempts of two ranks, the second after the warm process has learned from the first, or has refused."""
    work, state = tmp_path / "work", tmp_path / "state"
    work.mkdir()
    state.mkdir()
    (work / "script.py").write_text(text)
    command, environ = ["python3", "-u", "script.py"], {"PYTHONPATH": str(site)}
    return drive("learned", site, work, environ, folder=str(state), command=command, engine=engine)


def test_second_attempt_finds_the_framework_of_the_first(site: Path, tmp_path: Path) -> None:
    found = run(SCRIPT, site, tmp_path)
    assert found["results"][0] == {"0": [0, "False False"], "1": [0, "False False"]}
    assert found["results"][1] == {"0": [0, "True False"], "1": [0, "True False"]}


@pytest.mark.parametrize(
    ("name", "ahead"),
    [("XLA_FLAGS", False), ("JAX_PLATFORMS", False), ("MY_DATA", True), ("TF_CPP_MIN_LOG_LEVEL", True)],
)
def test_script_that_sets_a_variable_of_native_code_imports_by_itself(
    name: str, ahead: bool, site: Path, tmp_path: Path
) -> None:
    found = run(f"import os; os.environ['{name}'] = '1'\n{SCRIPT}", site, tmp_path)
    assert found["results"][1]["0"] == [0, f"{ahead} False"]
    refusals = [line for line in found["logs"] if f"native code may read {name} " in line]
    assert bool(refusals) is not ahead


def test_variable_of_each_attempt_is_not_known_ahead(site: Path, tmp_path: Path) -> None:
    (site / "reads.py").write_text("import os; os.environ.get('JAX_COORDINATOR_ADDRESS')\n")
    found = run(f"import reads\n{SCRIPT}", site, tmp_path)
    assert found["results"][1]["0"] == [0, "True False"]
    assert any("no module reads (it reads JAX_COORDINATOR_ADDRESS when" in line for line in found["logs"])


OPENS = {
    "jax": ("jax/_src/xla_bridge", "_backends = {}", "from jax._src import xla_bridge as x; x._backends['cpu'] = 1"),
    "tensorflow": (
        "tensorflow/python/eager/context",
        "class _context: _context_handle = None",
        "from tensorflow.python.eager import context as x; x._context._context_handle = 1",
    ),
}


@pytest.mark.parametrize("engine", OPENS)
def test_package_that_opens_the_devices_is_left_to_the_script(engine: str, site: Path, tmp_path: Path) -> None:
    """The script has to join its group before: `jax.distributed.initialize()` raises once they are open."""
    module, text, opens = OPENS[engine]
    (site / module).parent.mkdir(parents=True)
    (site / f"{module}.py").write_text(text + "\n")
    (site / "opens.py").write_text(opens + "\n")
    found = run(f"import sys; print('opens' in sys.modules, end=' ')\n{SCRIPT}import opens\n", site, tmp_path, engine)
    assert found["results"][1] == {"0": [0, "False True False"], "1": [0, "False True False"]}
    assert any(f"no module opens (it has opened the devices of {engine})" in line for line in found["logs"])


def test_imports_are_reported_once_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is killed reports nothing at its end."""
    monkeypatch.setattr(learned, "QUIET_SECONDS", 0.05)
    reported, names = threading.Event(), [f"stand_in_{number}" for number in range(10)]
    learned.report_when_quiet(reported.set)
    for name in names:
        monkeypatch.setitem(sys.modules, name, sys)
        assert not reported.wait(0.01)
    assert reported.wait(30)
