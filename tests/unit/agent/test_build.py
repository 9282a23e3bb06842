"""The agent as it is shipped: one file, always the same, for any Python from 3.9 on, with little in its memory."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import dtj_agent
import dtj_contract
from dtj_agent.build import build

AGENT = Path(dtj_agent.__file__).parent
SOURCES = sorted([*AGENT.rglob("*.py"), *Path(dtj_contract.__file__).parent.rglob("*.py")])
HEAVY = {
    "asyncio",
    "ssl",
    "hashlib",
    "_hashlib",
    "hmac",
    "subprocess",
    "http.server",
    "dataclasses",
    "inspect",
    "logging",
    "email",
    "random",
    "urllib",
}


def test_zipapp_has_the_same_bytes_for_the_same_sources(tmp_path: Path) -> None:
    started = time.process_time()
    build(str(tmp_path / "a.pyz"))
    assert time.process_time() - started < 3
    build(str(tmp_path / "b.pyz"))
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()
    names = zipfile.ZipFile(tmp_path / "a.pyz").namelist()
    assert "dtj_agent/main.py" in names
    assert "dtj_agent/build.py" not in names


def test_zipapp_without_settings_exits_with_2_and_names_the_variable(tmp_path: Path) -> None:
    build(str(tmp_path / "agent.pyz"))
    run = subprocess.run(
        [sys.executable, str(tmp_path / "agent.pyz"), "--", "true"], env={}, capture_output=True, text=True, timeout=150
    )
    assert run.returncode == 2
    assert "DTJ_REPLICAS is not set" in run.stdout


def test_start_compiles_nothing_with_the_python_that_has_built_the_zipapp(tmp_path: Path) -> None:
    build(str(tmp_path / "agent.pyz"))
    code = """
import builtins, sys
real = compile
def of_texts(source, name, *args, **kwargs):
    assert not name.endswith(".py"), f"{name} is compiled"
    return real(source, name, *args, **kwargs)
builtins.compile = of_texts
sys.path.insert(0, sys.argv[1])
import dtj_agent.agent, dtj_contract.names
assert dtj_agent.agent.__file__.startswith(sys.argv[1])
"""
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "agent.pyz")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr


def test_another_python_runs_the_sources_of_the_zipapp(tmp_path: Path) -> None:
    build(str(tmp_path / "agent.pyz"))
    with (
        zipfile.ZipFile(tmp_path / "agent.pyz") as ours,
        zipfile.ZipFile(tmp_path / "other.pyz", "w", zipfile.ZIP_DEFLATED) as other,
    ):
        for name in ours.namelist():
            data = ours.read(name)
            other.writestr(name, b"\1\2\r\n" + data[4:] if name.endswith(".pyc") else data)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "other.pyz"), "--", "true"], env={}, capture_output=True, text=True, timeout=150
    )
    assert run.returncode == 2
    assert "DTJ_REPLICAS is not set" in run.stdout


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_sources_parse_as_python_3_9(source: Path) -> None:
    """The parser checks the grammar; annotations are strings (PEP 563), so only code that runs must exist in 3.9."""
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    if source.name not in ("__init__.py", "names.py"):
        assert "from __future__ import annotations" in source.read_text()
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Match)
        strict = [keyword.arg for keyword in getattr(node, "keywords", []) if isinstance(node, ast.Call)]
        assert not {"kw_only", "slots", "strict"} & set(strict), f"line {getattr(node, 'lineno', 0)}"


def test_agent_imports_no_heavy_module() -> None:
    code = "import sys, dtj_agent.main; print(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150)
    assert not HEAVY & set(run.stdout.split())


PURE = sorted([
    *(path for path in AGENT.glob("group/*.py") if path.name != "__init__.py"),
    *AGENT.glob("engines/*.py"),
    *(AGENT / f"{name}.py" for name in (
        "errors", "net/http_response", "pages/metrics", "pages/status", "pages/status_version", "workers/worker_output",
        "warm_needs", "workers/progress_board", "workers/worker_env",
    )),
])  # fmt: skip
DOES_IO = {"os", "socket", "selectors", "threading", "time", "select", "sys", "shutil"}


def imported(source: Path) -> set[str]:
    """Returns the names of the modules that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (AGENT.parent / str(node.module).replace(".", "/")).is_dir():
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


@pytest.mark.parametrize("source", PURE, ids=lambda path: str(path.relative_to(AGENT)))
def test_pure_modules_import_no_clock_and_no_socket(source: Path) -> None:
    """The simulator can run pure modules only if they import pure ones only (of settings, the values)."""
    modules = imported(source)
    assert not modules & DOES_IO
    pure = {"dtj_agent." + ".".join(path.relative_to(AGENT).with_suffix("").parts) for path in PURE}
    ours = {module for module in modules if module.startswith("dtj_agent.")}
    ours = {module for module in ours if not module.startswith("dtj_agent.engines")}  # a package, and pure as a whole
    assert ours <= pure | {"dtj_agent.settings"}, ours - pure
