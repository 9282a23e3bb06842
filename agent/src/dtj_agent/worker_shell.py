"""The shell around one pod's workers: their processes, rendezvous store, MASTER_PORT, reports and error files."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from dtj_agent import engines
from dtj_agent.files.pod_output import PodOutput
from dtj_agent.group.member import Spawn
from dtj_agent.group.worker_exit import WorkerExit
from dtj_agent.net.loop import Loop
from dtj_agent.net.progress_server import ProgressServer
from dtj_agent.settings import AgentSettings
from dtj_agent.store.host import StoreHost
from dtj_agent.store.master_port import PortHolder
from dtj_agent.workers import error_file, extension_locks, gpu_files, kubeflow, python_command, worker_env
from dtj_agent.workers.import_trust import ImportTrust
from dtj_agent.workers.rank_watch import RankWatch
from dtj_agent.workers.report_socket import ReportSocket
from dtj_agent.workers.stacks import StackFiles
from dtj_agent.workers.supervisor import Supervisor
from dtj_agent.workers.warm_process import WarmProcess
from dtj_agent.workers.worker_start import WorkerStart
from dtj_contract import names


class WorkerShell:
    """Calls back: `on_exit` with the workers that ended, `on_gone` once none is left after `stop`,
    `on_stuck` with why SIGKILL does not end them, `on_reports` when reports are urgent,
    `on_store_failed` with why there is no store, `on_warm` when workers can be forked, or never will.
    """

    def __init__(self, loop: Loop, settings: AgentSettings, environ: Mapping[str, str], output: PodOutput) -> None:
        self.on_exit: Callable[[List[WorkerExit]], None] = lambda exits: None
        self.on_gone: Callable[[], None] = lambda: None
        self.on_stuck: Callable[[str], None] = lambda text: None
        self.on_reports: Callable[[], object] = lambda: None
        self.on_store_failed: Callable[[str], None] = lambda why: None
        self.on_warm: Callable[[], None] = lambda: None
        self._loop = loop
        self._settings = settings
        self._environ = dict(environ)
        self._engine = engines.load(settings.engine)
        if settings.launched:
            self._environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        self._log = output.log

        self._ports = PortHolder(settings.address, settings.processes if self._engine.rank_ports else 1)
        self._ports.renew()
        self._reports = ReportSocket(loop, settings.state_dir)
        self._reports.on_news = lambda: self.on_reports()
        self._progress = self._progress_server()
        self._own_ranks = range(0)
        self.stacks = StackFiles(os.path.join(os.path.abspath(settings.state_dir), names.STACK_FOLDER))
        self._supervisor = Supervisor(loop, is_init=os.getpid() == 1)
        self._supervisor.on_exit = self._on_worker_exit
        self._supervisor.on_gone = self._on_workers_gone
        self._supervisor.on_output = output.write
        self._supervisor.on_stuck = lambda text: self.on_stuck(text)
        self._supervisor.has_room = output.has_room
        self.watch = RankWatch(loop, lambda: self._supervisor.processes, self._reports, self.stacks)
        kept = {key: value for key, value in environ.items() if key not in worker_env.AGENT_ONLY}
        self._store = StoreHost(loop, kept, self._supervisor.spared)
        self._warm = self._warm_process(output)
        self._start = WorkerStart(loop, self._supervisor, self._warm, self._log)
        self._start.on_warm = lambda: self.on_warm()
        self._trust = ImportTrust()
        self._store.on_failed = self._fail_store
        self._store.on_ended = lambda code: self._log(
            "the rendezvous store ended without being stopped (wait status %d)" % code
        )

    @property
    def port(self) -> int:
        """First port of this pod in the next attempt: MASTER_PORT if it gets node rank 0, or that of its first rank.

        A new one is chosen when the workers are gone.
        """
        return self._ports.port

    @property
    def attempt(self) -> int:
        """The attempt that reports are accepted for."""
        return self._reports.attempt

    @property
    def step(self) -> Optional[int]:
        """The last step that a worker reported."""
        return self._reports.step

    @property
    def is_warming(self) -> bool:
        """Whether the warm process still imports, so that workers would start late."""
        return self._warm is not None and self._warm.is_importing

    def take_reports(self) -> List[Dict[str, Any]]:
        """Returns new reports as messages. Each is returned once, so call it only with a link to send them on."""
        return self._reports.take()

    def ranks(self, spawn: Spawn) -> range:
        """Returns the global ranks that this pod has in an attempt."""
        return worker_env.ranks(self._settings, spawn)

    def spawn(self, spawn: Spawn, checkpoint_keep: Optional[int] = None) -> None:
        """Starts the workers of an attempt, and its store where this pod has node rank 0.

        `checkpoint_keep`: the operator's value, if that has changed since this pod was created.
        """
        settings = self._settings
        self._judge_imports()
        self._own_ranks = self.ranks(spawn)
        self._reports.begin(spawn.attempt, self._own_ranks[0] if self._engine.one_rank else None)
        self._open_store(spawn)
        if spawn.attempt > 1:
            for path in extension_locks.remove_stale_locks(extension_locks.folder(self._environ)):
                self._log("removed %s: the worker that was building an extension there was killed" % path)
        ranks = self.ranks(spawn)
        self.stacks.begin(ranks)
        environments = {}
        gpus = gpu_files.count_gpus()
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        started = {} if clock is None else {names.ENV_STARTED_AT: "%.3f" % time.clock_gettime(clock)}
        for local_rank, rank in enumerate(ranks):
            error_path = self._error_path(local_rank)
            self._remove(error_path)
            environments[rank] = worker_env.worker_environment(
                settings, self._environ, spawn, local_rank, self._reports.path, error_path, self.stacks.path(rank), gpus
            )
            environments[rank].update(started)
            environments[rank].update(worker_env.launcher_environment(settings, spawn, self._environ))
            if self._progress is not None:
                environments[rank].update(self._progress.environment(spawn.attempt, rank, environments[rank]))
            if checkpoint_keep is not None and settings.checkpoint_dir:
                environments[rank][names.ENV_CHECKPOINT_KEEP] = str(checkpoint_keep)
        if settings.launched:
            text = "the command is a launcher: one is started in each pod, with %s as PET_NPROC_PER_NODE"
            self._log(text % environments[ranks[0]]["PET_NPROC_PER_NODE"])
        world_size = spawn.nodes * settings.processes
        self._log("attempt %d: starting ranks %d to %d of %d" % (spawn.attempt, ranks[0], ranks[-1], world_size))
        self.watch.begin()
        self._start.start(worker_env.command(settings, spawn), environments)
        self._trust.begin(self._loop.clock(), self._start.began_ahead)

    def stop(self, grace: float) -> None:
        """Sends SIGTERM to the workers, and SIGKILL to all that is left after `grace` seconds.

        The default grace of a failed group is only for workers that can use it.
        """
        self._start.cancel()
        default = grace <= names.STOP_GRACE_SECONDS and not self._settings.stop_grace_given
        self._supervisor.stop(grace, hurry=default)

    def close(self) -> None:
        """Closes the report socket, and ends the store and the warm process."""
        if self._warm is not None:
            self._warm.close()
        self._reports.close()
        if self._progress is not None:
            self._progress.close()
        self._store.end()

    # --- the progress that Kubeflow's clients send ------------------------------------------------

    def _progress_server(self) -> Optional[ProgressServer]:
        """Returns the server; None if the job turns it off, names a server of its own, or there is no room for one."""
        if not self._settings.kubeflow or names.KUBEFLOW_URL in self._environ:
            return None
        try:
            return ProgressServer(self._loop, self._settings.state_dir, self._take_progress)
        except OSError as error:
            self._log("the progress of Kubeflow's clients is not taken: %s" % error)
            return None

    def _take_progress(self, attempt: int, rank: int, body: bytes) -> bool:
        report = kubeflow.parse(body, attempt, rank)
        if report is None:
            return False
        # Whatever a process here sends, it speaks for ranks of this pod and attempt alone.
        if attempt == self.attempt and rank in self._own_ranks:
            self._reports.add(report)
        return True

    # --- the warm process -------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Starts the warm process, so that its imports overlap with scheduling and rendezvous."""
        if self._warm is not None:
            self._warm.start()

    def _warm_process(self, output: PodOutput) -> Optional[WarmProcess]:
        """Returns the warm process of this pod, not started yet; None where workers can't be forked."""
        settings = self._settings
        if not settings.warm or sys.platform != "linux":
            return None
        needs = self._engine.warm
        if needs is None:
            self._log("workers are started without a warm process: engine %s has none" % settings.engine)
            return None
        command = python_command.parse(settings.command)
        if settings.launched:
            command = python_command.Unsuitable("the command is a launcher, which starts the ranks itself")
        if isinstance(command, python_command.Unsuitable):
            if command.why:
                self._log("workers are started without a warm process: %s" % command.why)
            return None
        environ = worker_env.common_environment(settings, self._environ)
        spared, guarded = self._supervisor.spared, self._supervisor.is_guarded
        folder = os.path.abspath(settings.state_dir)
        modules = settings.preload
        warm = WarmProcess(self._loop, command, environ, needs, modules, spared, guarded, folder, settings.command)
        warm.log, warm.on_output = self._log, output.write
        return warm

    def _judge_imports(self) -> None:
        """Ends the imports ahead if the attempt that has ended shows that they may be the reason."""
        self._reports.read()
        stepped = self.step is not None or bool(self._reports.counts)
        if self._trust.end(self._loop.clock(), stepped) and self._warm is not None and self._warm.unlearn():
            text = "attempt %d ended before its first step: the script's imports are no longer done ahead"
            self._log(text % self.attempt)

    # --- the end of workers -----------------------------------------------------------------------

    def _on_worker_exit(self, exits: List[WorkerExit]) -> None:
        for worker in exits:
            why = " after the agent's SIGTERM" if worker.requested else ""
            self._log("rank %d exited with %d%s" % (worker.rank, worker.exit_code, why))
            if worker.exit_code and worker.exit_code != -signal.SIGKILL and not worker.requested:
                self._trust.fail()
        exits = [self._with_error_file(worker) for worker in exits]
        self._reports.read()
        self.on_exit(exits)

    def _on_workers_gone(self) -> None:
        self._ports.renew()
        self.on_gone()

    def _with_error_file(self, worker: WorkerExit) -> WorkerExit:
        """Adds the error that the worker recorded itself; its traceback replaces a log tail that is empty."""
        if not worker.exit_code:
            return worker
        found = error_file.read(self._error_path(worker.rank % self._settings.processes))
        if found is None:
            return worker
        return worker._replace(recorded=found.message, log_tail=worker.log_tail or found.traceback)

    # --- the store and the error files ------------------------------------------------------------

    def _open_store(self, spawn: Spawn) -> None:
        """Ends the store of the attempt before; the pod of node rank 0 holds the store of this attempt.

        Ports that the agent does not serve are free from here on, for servers of the ranks.
        """
        self._store.close()
        bound = self._ports.take()
        if spawn.node_rank != 0 or not worker_env.has_agent_store(self._settings, self._environ):
            if bound is not None:
                bound.close()
            return
        if bound is None or bound.getsockname()[1] != spawn.master_port:
            # Ranks would wait for this port until their own timeout, half an hour by default.
            why = "port %d of the rendezvous store is not held by this pod" % spawn.master_port
            if bound is not None:
                bound.close()
            self._loop.soon(lambda: self._fail_store(why))
            return
        try:
            self._store.open(bound)
        except OSError as error:
            why = "port %d: %s" % (spawn.master_port, error.strerror)
            self._loop.soon(lambda: self._fail_store(why))

    def _fail_store(self, why: str) -> None:
        self._log(why)
        self.on_store_failed(why)

    def _error_path(self, local_rank: int) -> str:
        return os.path.join(self._settings.state_dir, "error-%d.json" % local_rank)

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._log("can't remove %s: %s" % (path, error.strerror))
