"""A Docker engine: the one that answers, or one that this module installs (Debian, root) and starts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from hack.cluster import cache, packages, runc_wrapper
from hack.cluster.shell import ProvisionError, log, run, succeeds, wait_for


def state() -> Path:
    """Returns the folder with the settings, log and process id of an engine that this module started."""
    folder = cache.root() / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def answers() -> bool:
    return shutil.which("docker") is not None and succeeds(
        ["docker", "version", "-f", "{{.Server.Version}}"], timeout=10
    )


def ensure() -> bool:
    """Makes `docker` work, privileged containers included. Returns whether the engine had to be started.

    Raises ProvisionError that names what is missing.
    """
    if answers():
        return False
    if shutil.which("docker") and os.environ.get("DOCKER_HOST"):
        raise ProvisionError(f"no Docker engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}")
    if not packages.can_install():
        raise ProvisionError(
            "no Docker engine answers, and only root on Debian can install one here. "
            "Start one (or add yourself to its group), then try again"
        )
    with cache.lock("engine"):
        if answers():
            return False
        packages.need("dockerd", "iptables", "runc")
        _start()
    return True


def _start() -> None:
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", "docker"], timeout=120)
    else:
        _start_by_hand()
    if not answers():
        raise ProvisionError(
            f"the Docker engine started, but the docker client gets no answer; see {state()}/dockerd.log"
        )


def _start_by_hand() -> None:
    _forget_dead("/run/docker.pid", "/run/docker/containerd/containerd.pid")
    settings = state() / "daemon.json"
    settings.write_text(json.dumps(_settings(), indent=1))
    logfile = state() / "dockerd.log"
    log("starting a Docker engine")
    with logfile.open("ab") as stream:
        daemon = subprocess.Popen(
            [packages.find("dockerd") or "dockerd", "--config-file", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            # In its own session the engine outlives this command and its terminal.
            start_new_session=True,
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        )
    (state() / "dockerd.pid").write_text(str(daemon.pid))

    def ready() -> bool:
        if daemon.poll() is not None:
            tail = "\n".join(logfile.read_text(errors="replace").splitlines()[-15:])
            raise ProvisionError(f"dockerd exited with {daemon.returncode}:\n{tail}")
        return answers()

    wait_for("the Docker engine", ready, timeout=60)


def _settings() -> dict[str, object]:
    settings: dict[str, object] = {
        "storage-driver": "overlay2",
        # Without systemd, dockerd must manage cgroups itself.
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "log-opts": {"max-size": "20m", "max-file": "2"},
    }
    if runc_wrapper.missing(Path("/proc/self/status").read_text()):
        settings["runtimes"] = {"dtj-runc": {"path": str(_install_wrapper())}}
        settings["default-runtime"] = "dtj-runc"
    return settings


def _install_wrapper() -> Path:
    """Copies the wrapper out of the tree, so that the engine still works after the tree is deleted."""
    source = Path(runc_wrapper.__file__).read_text()
    real = packages.find("runc")
    if real is None:
        raise ProvisionError("no runc; on Debian, as root: apt-get install runc")
    # Prefer the system's interpreter, because a virtual environment may be deleted meanwhile.
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else os.path.realpath(sys.executable)

    def build(folder: Path) -> None:
        (folder / "runc").symlink_to(real)
        wrapper = folder / "runc-wrapper"
        wrapper.write_text(f"#!{python} -IS\n{source}")
        wrapper.chmod(0o755)

    return cache.entry("runc-wrapper", cache.key(source, real, python), build) / "runc-wrapper"


def _forget_dead(*files: str) -> None:
    """Deletes the process-id files of a killed engine, because other processes may have these numbers by now."""
    for name in files:
        path = Path(name)
        with contextlib.suppress(OSError, ValueError):
            command = Path(f"/proc/{int(path.read_text())}/comm")
            if command.exists() and command.read_text().strip() in ("dockerd", "containerd"):
                continue
        with contextlib.suppress(OSError):
            path.unlink()


def _ended(pid: int) -> bool:
    try:
        # The format is "pid (name) state …". A zombie only waits for its parent, so it has ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def stop() -> None:
    """Stops the engine if this module started it; images and volumes stay on disk."""
    recorded = state() / "dockerd.pid"
    try:
        pid = int(recorded.read_text())
        ours = Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd"
    except (OSError, ValueError):
        return
    if ours:
        log("stopping the Docker engine")
        os.kill(pid, signal.SIGTERM)
        wait_for("the Docker engine to end", lambda: _ended(pid), timeout=60)
    recorded.unlink(missing_ok=True)
