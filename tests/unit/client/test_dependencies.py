"""Installs the client into an empty environment, and checks what comes with it.

The wheels are built from the tree. Everything else comes from the lock file: from uv's cache, which
`make venv` fills, or from the package index if the cache lacks something.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = ("contract", "core", "agent", "client")
SECONDS = 240.0
ABSENT = ("kopf", "torch", "matplotlib", "prometheus_client", "dtj_operator", "dtj_trainer")
# Every module that a verb can reach. The modules of a verb are imported when the verb runs.
MODULES = (
    "dtj.main",
    "dtj.local.command",
    "dtj.cluster.client",
    "dtj.cluster.logs",
    "dtj.cluster.verbs",
    "dtj.cluster.wait",
    "dtj.report.command",
    "dtj.export.command",
    "dtj.simulate.command",
    "dtj.bench.command",
    "kubernetes",
)
IMPORTED = f"""
import importlib, json, sys
for name in {MODULES!r}:
    importlib.import_module(name)
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
FOUND = f"""
import importlib.util, json
print(json.dumps([name for name in {ABSENT!r} if importlib.util.find_spec(name) is not None]))
"""

pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, environ: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output.

    Fails the test with the output if the command fails.
    """
    arguments = [str(argument) for argument in command]
    done = subprocess.run(
        arguments, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def uv_settings() -> dict[str, str]:
    """Returns the environment with pip's index settings for uv, as hack/venv.sh passes them."""
    environ = dict(os.environ)
    for option, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
        for key in (f"global.{option}", f":env:.{option}"):
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "get", key]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode == 0 and done.stdout.strip():
                environ.setdefault(variable, done.stdout.strip())
    return environ


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the bin folder of an environment that holds the client and its dependencies only."""
    folder = tmp_path_factory.mktemp("client")
    uv = Path(sys.executable).with_name("uv")
    for project in PROJECTS:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheels")]
        done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT / project, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"{project}: {done.stdout}{done.stderr}"
    environ = uv_settings()
    run(uv, "venv", "--quiet", "--python", sys.executable, folder / "venv", environ=environ)
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        folder / "venv/bin/python",
        "--find-links",
        folder / "wheels",
    ]
    install += ["--constraint", ROOT / "requirements/dev.lock", "dtj-client"]
    offline = subprocess.run(
        [str(argument) for argument in (*install, "--offline")],
        capture_output=True,
        text=True,
        env=environ,
        timeout=SECONDS,
        check=False,
    )
    if offline.returncode != 0:
        run(*install, environ=environ)
    return folder / "venv/bin"


def installed(environment: Path) -> dict[str, metadata.Distribution]:
    """Returns the installed distributions by normalized name."""
    (site_packages,) = environment.parent.glob("lib/python*/site-packages")
    found = metadata.distributions(path=[str(site_packages)])
    return {normalized(distribution.metadata["Name"]): distribution for distribution in found}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(distribution: metadata.Distribution) -> set[str]:
    """Returns the names that a distribution requires without any extra."""
    declared = map(Requirement, distribution.requires or [])
    needed = [one for one in declared if one.marker is None or one.marker.evaluate({"extra": ""})]
    return {normalized(one.name) for one in needed}


def test_client_installs_neither_operator_nor_torch(environment: Path) -> None:
    assert json.loads(run(environment / "python", "-I", "-c", FOUND)) == []
    assert {"dtj-client", "dtj-core", "dtj-contract", "dtj-agent"} <= set(installed(environment))


def test_installed_client_prints_its_help(environment: Path) -> None:
    assert "submit" in run(environment / "dtj", "--help")
    for verb in ("run", "submit", "get", "logs", "wait", "report", "export", "simulate", "bench", "delete"):
        assert "usage: dtj" in run(environment / "dtj", verb, "--help")


def test_aiohttp_comes_only_with_the_kubernetes_client(environment: Path) -> None:
    """Checks the metadata: version 37 of `kubernetes` requires aiohttp for its `kubernetes.aio`."""
    distributions = installed(environment)
    reached, pending = set(), ["dtj-client"]
    while pending:
        name = pending.pop()
        if name in reached or name == "kubernetes" or name not in distributions:
            continue
        reached.add(name)
        pending += requirements(distributions[name])
    assert {"dtj-core", "pydantic", "rich"} <= reached
    assert "aiohttp" not in reached


def test_client_imports_no_aiohttp(environment: Path) -> None:
    imported = set(json.loads(run(environment / "python", "-I", "-c", IMPORTED)))
    assert {"dtj", "dtj_core", "kubernetes"} <= imported
    assert not imported & {"aiohttp", *ABSENT}
