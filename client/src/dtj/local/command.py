"""`dtj run`: from the command line to a run and back to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import platform
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from dtj import jobfile, runtimefile, script_job, yaml_text
from dtj.errors import InputError, LocalRunError
from dtj.local import container, faults, pods, processes, run, template, volumes
from dtj.local.log_tail import LogTail
from dtj.view.model import View
from dtj.view.plain import PlainView
from dtj.view.summary import summary
from dtj.view.table import TableView
from dtj_contract import names
from dtj_core.api import DistributedTrainingJob
from dtj_core.plan.model import Object, Observed, Plan, Settings
from dtj_core.plan.plan import plan

NAMESPACE = "default"
# Fields of a spec that mean nothing on one machine, and why.
IGNORED = {
    "network": "all ranks are on this machine",
    "shmSize": "/dev/shm is that of this machine",
    "queueName": "nothing is queued here",
    "gang": "nothing is scheduled here",
    "halfPlacedSeconds": "nothing is scheduled here",
    "managedBy": "dtj run runs the job",
}
NVIDIA = Path("/dev/nvidiactl")  # exists only with the driver


def command(flags: argparse.Namespace) -> int:
    """Runs the job of `flags.file`, or of the script `flags.script`. Raises DtjError."""
    if not flags.dry_run:
        processes.require_linux()
    written = _written(flags)
    origin = flags.file or "dtj run"
    model = jobfile.check(written, origin)
    template.check_spec(written["spec"], origin)
    if flags.dry_run:
        print(_printed(written, flags.output or "yaml"))
        return 0
    if model.spec.suspend:
        raise InputError(f"{origin}: spec.suspend: the job would never start; set it to false to run the job here")
    if question := model.spec.accelerator_question:
        raise InputError(f"{origin}: {question}")
    volumes.plain(f"{origin}: metadata.namespace", written["metadata"].get("namespace", NAMESPACE))
    volume = model.spec.checkpoint.volume if model.spec.checkpoint else None
    if volume and volume.claim_name:
        volumes.plain(f"{origin}: spec.checkpoint.volume.claimName", volume.claim_name)
    requested = [faults.parse(text) for text in flags.kill]
    spec = model.spec
    faults.check(requested, replicas=spec.replicas, processes_per_pod=spec.processes, spares=spec.spares)
    job = admitted(written)
    with tempfile.TemporaryDirectory(prefix="dtj-") as scratch:
        return _run(job, model, requested, _host(job, flags, Path(scratch)), flags)


def _written(flags: argparse.Namespace) -> Object:
    """Returns the job of the file, or the one that the flags and the script describe."""
    own = {flag: getattr(flags, flag) for flag in script_job.FIELDS}
    if flags.script is None:
        script_job.reject_script_flags(own)
        return runtimefile.load_one(flags.file, flags.runtime)
    if flags.runtime is not None:
        raise InputError("--runtime: give a job file too; a script names no runtime")
    run_of_script = script_job.ScriptRun(command=flags.script, **own)
    return script_job.job(run_of_script, script_job.Machine.read(), here=not flags.dry_run)


def _printed(value: Object, form: str) -> str:
    return json.dumps(value, indent=2) if form == "json" else yaml_text.dump(value).rstrip()


def _run(
    job: Object,
    model: DistributedTrainingJob,
    requested: Sequence[faults.Fault],
    host: container.HostEnvironment,
    flags: argparse.Namespace,
) -> int:
    checkpoints = volumes.checkpoint_dir(
        model.spec, job["metadata"]["namespace"], job["metadata"]["name"], host.volumes_dir
    )

    stream = sys.stderr if flags.output else sys.stdout
    console = Console(file=stream)
    # A dumb terminal can't redraw in place.
    plain = flags.plain or not console.is_terminal or console.is_dumb_terminal
    view: View = PlainView(stream) if plain else TableView(console)
    began = time.monotonic()
    settings = Settings(
        agent_image="",
        master_key=os.urandom(32),
        can_avoid_nodes=False,
        progress_write_seconds=1.0,
        status_poll_seconds=run.LOOK_SECONDS,
    )

    def planner(job: Object, observed: Observed, now: float) -> Plan:
        return plan(_for_this_machine(job), observed, now, settings)

    with volumes.held(checkpoints), view:
        for notice in _notices(model, job, host, checkpoints, fresh=flags.fresh):
            view.print_log(notice)
        code = asyncio.run(run.run(job, host, planner, faults=requested, view=view, tail=_tail(flags, host.run_dir)))
    seconds = time.monotonic() - began
    for line in summary(
        job,
        seconds=seconds,
        run_dir=_relative(host.run_dir),
        checkpoint_dir=_relative(checkpoints) if checkpoints else None,
    ):
        print(line, file=stream)
    if advice := _advice(job, host):
        print(f"  advice       {advice}", file=stream)
    if flags.output:
        run_report = {
            "exitCode": code,
            "seconds": round(seconds, 3),
            "directory": str(host.run_dir),
            "checkpoints": str(checkpoints) if checkpoints else None,
        }
        print(_printed({**job, "run": run_report}, flags.output))
    return code


def _tail(flags: argparse.Namespace, run_dir: Path) -> LogTail | None:
    """Returns the reader of the workers' output: all with --logs, none with --no-logs, else one rank's."""
    if flags.logs is False:
        return None
    return LogTail(run_dir) if flags.logs else LogTail(run_dir, flags.rank or 0)


def admitted(written: Object) -> Object:
    """Returns the job as the API server would store it."""
    job = copy.deepcopy(written)
    job.pop("status", None)
    job["metadata"] = {
        "namespace": NAMESPACE,
        **job["metadata"],
        "uid": str(uuid.uuid4()),
        "generation": 1,
        "creationTimestamp": pods.timestamp(datetime.now(UTC)),
    }
    return job


def _for_this_machine(job: Object) -> Object:
    """Returns the job as this machine can run it; the job that people see is unchanged.

    Its pods run as the user of this process where the template names none (the home of a pod's
    nameless user is /tmp), and `backend: auto` is gloo where there is no GPU. `_notices` names what
    it ignores.
    """
    job = copy.deepcopy(job)
    for field in IGNORED:
        job["spec"].pop(field, None)
    wanted = job["spec"]["template"] = job["spec"].get("template") or {}
    pod = wanted["spec"] = wanted.get("spec") or {}
    pod["securityContext"] = {"runAsUser": os.getuid(), **(pod.get("securityContext") or {})}
    if not NVIDIA.exists() and job["spec"].get("backend", "auto") == "auto":
        job["spec"]["backend"] = "gloo"
    return job


def _host(job: Object, flags: argparse.Namespace, scratch: Path) -> container.HostEnvironment:
    name = job["metadata"]["name"]
    run_dir = Path(
        flags.run_dir or f".dtj/runs/{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{job['metadata']['uid'][:4]}"
    ).absolute()
    volumes_dir = Path(flags.volumes_dir).absolute()
    try:
        if not flags.run_dir:
            _keep_from_git(run_dir.parents[1])
        run_dir.mkdir(parents=True)
        volumes_dir.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InputError(f"--run-dir {run_dir}: exists already; name a new folder") from error
    except OSError as error:
        raise LocalRunError(
            f"can't create {error.filename}: {error.strerror}; see --run-dir and --volumes-dir"
        ) from error
    return container.HostEnvironment(
        job_uid=job["metadata"]["uid"],
        python=sys.executable,
        node=platform.node(),
        run_dir=run_dir,
        scratch_dir=scratch,
        volumes_dir=volumes_dir,
        working_dir=Path.cwd(),
        environment=dict(os.environ),
    )


def _keep_from_git(folder: Path) -> None:
    """Writes a .gitignore, because nothing that runs leave behind should be committed."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".gitignore").exists():
        (folder / ".gitignore").write_text("*\n")


def _advice(job: Object, host: container.HostEnvironment) -> str | None:
    """Returns a hint for a failure that this machine, in place of the image, may have caused."""
    status = job.get("status", {})
    if status.get("reason") == names.Reason.ENTRYPOINT_NOT_FOUND:
        return f"a relative path in entrypoint starts at {host.working_dir}, where dtj was started"
    if status.get("reason") == names.Reason.IMPORT_FAILED:
        return f"the workers run in {host.python}: install the missing package there, or start dtj with another Python"
    return None


def _notices(
    model: DistributedTrainingJob,
    job: Object,
    host: container.HostEnvironment,
    checkpoints: Path | None,
    *,
    fresh: bool,
) -> list[str]:
    """Returns the notices to show before the run starts. With `fresh`, clears the job's folder."""
    image = model.spec.image or model.spec.trainer.get("image")
    name, spec = job["metadata"]["name"], model.spec
    pods_of, ranks = (_count(spec.replicas, "pod"), _count(spec.processes, "rank"))
    more = f" and {_count(spec.spares, 'spare')}" if spec.spares else ""
    notices = [f"{name}: {pods_of} x {ranks}{more} on this machine; folder {_relative(host.run_dir)}"]
    if spec.elastic is not None:
        notices.append(f"to change its size meanwhile: dtj scale {_relative(host.run_dir)} --replicas N")
    notices.append(f"image {image} is not used: the workers run in {host.python}, in {host.working_dir}")
    notices += [f"{field} is ignored: {why}" for field, why in IGNORED.items() if job["spec"].get(field) is not None]
    notices += container.ignored_fields(model.spec.merged_template.get("spec") or {}, host.environment)
    if spec.resolved_backend == "nccl" and spec.backend == "auto" and not NVIDIA.exists():
        notices.append("this machine has no NVIDIA GPU: the backend is gloo instead of nccl")
    if checkpoints and volumes.is_used(checkpoints):
        notices.append(_prepare_volume(checkpoints, host.volumes_dir, fresh=fresh))
    return notices


def _relative(path: Path) -> Path:
    """Returns the path relative to the working directory, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _prepare_volume(checkpoints: Path, volumes_dir: Path, *, fresh: bool) -> str:
    """Returns a notice about the files of earlier runs. With `fresh`, removes those files first."""
    step = volumes.newest_step(checkpoints)
    if fresh:
        volumes.clear(checkpoints, volumes_dir)
        newest = "no dtj checkpoint" if step is None else f"newest checkpoint: step {step}"
        return f"--fresh: removed everything that earlier runs left in {checkpoints} ({newest})"
    if step is None:
        return f"an earlier run left files and its count of attempts in {checkpoints}; --fresh starts over"
    return f"resuming from step {step}, a checkpoint of an earlier run in {checkpoints}; --fresh starts over"
