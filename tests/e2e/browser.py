"""The dashboard in a real browser: Grafana's panel components in a headless Chromium, with a Prometheus on kind.

Grafana's server takes no part. The page, dashboard_page/, has the components that draw its panels (@grafana/ui).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from hack.images.recipes import ROOT
from tests.e2e.prometheus import STEP_SECONDS, Prometheus

SOURCE = Path(__file__).parent / "dashboard_page"
DASHBOARD = ROOT / "charts/dtj-operator/files/dashboard.json"
FOLDER = ROOT / "build/dashboard-page"
NODE_MAJOR = 20
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
BUILD_SECONDS = 1800
LOOK_SECONDS = 180
COLOURS = 128


def build_page() -> Path:
    """Bundles the page from its sources and the packages of its lock file. Returns the folder to serve.

    Raises FileNotFoundError, with a remedy, if a program is missing.
    """
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise FileNotFoundError(f"{program} is missing: the test needs Node.js {NODE_MAJOR} or newer, and npm")
    version = _run("node", "--version").strip()
    if int(version.removeprefix("v").split(".")[0]) < NODE_MAJOR:
        raise FileNotFoundError(f"node is {version}: the test needs Node.js {NODE_MAJOR} or newer")
    _chromium()
    lock = (SOURCE / "package-lock.json").read_text()
    installed = FOLDER / "installed.json"
    shutil.copytree(SOURCE, FOLDER, dirs_exist_ok=True)
    if not installed.exists() or installed.read_text() != lock:
        _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=FOLDER)
        installed.write_text(lock)
    _run("npm", "run", "build", cwd=FOLDER)
    shutil.copy(DASHBOARD, FOLDER / "dist/dashboard.json")
    return FOLDER / "dist"


def look(page: Path, prometheus: Prometheus, start: float, end: float, picture: Path) -> dict[str, Any]:
    """Opens the page, and writes a screenshot. Returns what each panel has drawn, by its title."""
    with _served(page) as server:
        parameters = {
            "prometheus": prometheus.proxy_path,
            "scrape": f"{STEP_SECONDS}s",
            "from": round(start * 1000),
            "to": round(end * 1000),
        }
        address = f"{server}/dashboard/?{urllib.parse.urlencode(parameters)}"
        environment = os.environ | {"CHROMIUM": _chromium()}
        out = _run("node", "look.mjs", address, str(picture), cwd=FOLDER, env=environment, timeout=LOOK_SECONDS)
    found = json.loads(out)
    assert not found["errors"], "\n".join(found["errors"])
    # A picture in the documentation stays small: the panels have few colours.
    Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)
    panels: dict[str, Any] = found["panels"]
    return panels


@contextmanager
def _served(page: Path) -> Iterator[str]:
    """Serves the page and the API server from one address. Pods are reached through the API server."""
    command = ["kubectl", "proxy", "--port=0", f"--www={page}", "--www-prefix=/dashboard/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout
            line = proxy.stdout.readline()
            found = re.search(r"127\.0\.0\.1:\d+", line)
            assert found, f"kubectl proxy: {line}"
            yield f"http://{found[0]}"
        finally:
            proxy.terminate()


def _chromium() -> str:
    for name in CHROMIUMS:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("Chromium is missing: apt-get install chromium")


def _run(*command: str, timeout: float = BUILD_SECONDS, **arguments: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, **arguments
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-3000:]}{done.stdout[-3000:]}"
    return done.stdout


if __name__ == "__main__":
    # Before the test, because no deadline should run while packages are downloaded.
    try:
        print(build_page())
    except FileNotFoundError as error:
        sys.exit(str(error))
