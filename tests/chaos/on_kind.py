"""Faults of a cluster, on the kind cluster of `make cluster-up deploy`, with the oracle of the groups of processes.

    python -m tests.chaos.on_kind --trials 10

KUBECONFIG and kubectl come from the environment (`eval "$(make -s cluster-env)"`). All containers of
kind share one kernel and so one monotonic clock: a step's time in a pod is comparable with a fault's here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.cluster import kind
from tests.chaos import kind_report, oracle, other_pods
from tests.chaos.records import Records
from tests.chaos.run import by_step
from tests.e2e.conftest import drop_namespace, make_namespace
from tests.e2e.kit import OPERATOR_NAMESPACE, Job, Kubectl, Object, docker, environment, is_true, wait_until
from tests.e2e.test_recovery import KILL_WORKER

HERE = Path(__file__).parent
MOUNT = "/app/chaos"
STEP_SECONDS = 0.02
START_SECONDS, RECOVERY_SECONDS, NODE_SECONDS, END_SECONDS = 180.0, 120.0, 300.0, 300.0
PAUSE_SECONDS = 60.0
"""How long the API server is paused."""
CUT_SECONDS = 30.0
"""How long a network is cut: less than the kubelet's 50 s to NotReady."""
KILL_WORKERS_OF_NODE = (
    "for p in $(pgrep -f torch_script.py); do grep -qa agent.pyz /proc/$p/cmdline || kill -KILL $p; done"
)


@dataclass
class Cluster:
    """A job that trains until it is ended, and what disturbs it."""

    kubectl: Kubectl
    job: Job
    elastic: bool
    records: Records = field(default_factory=Records)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    phases: dict[str, dict[int, Object]] = field(default_factory=lambda: defaultdict(dict))
    """The phases of each recovery as the status shows them, by fault and attempt."""

    def look(self) -> Records:
        """Returns the records of all pods so far."""
        folder = self.job.folder / "log"
        if folder.is_dir():
            self.records.read(folder)
        return self.records

    def wait(self, what: str, condition: Callable[[Records], Any], seconds: float) -> Any:
        """Waits for a condition of the records; a failure shows the job's status."""
        return wait_until(
            what,
            lambda: condition(self.look()),
            timeout=seconds,
            detail=lambda: json.dumps(self.job.get().get("status"), indent=1),
        )

    def recovered(self, name: str, since: float, before: int, seconds: float = RECOVERY_SECONDS) -> None:
        """Waits until a later attempt has done steps, and notes the seconds from `since` to the first of them."""
        self.wait(f"steps after {name}", lambda r: r.newest > before and r.group_steps.get(r.newest, 0) >= 3, seconds)
        self.note(name, self.records.first_steps[self.records.newest] - since)

    def undisturbed(self, name: str, seconds: float) -> None:
        """Checks that the attempt lasts for so long; notes the longest time without a step."""
        before, end, longest = self.look().newest, time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            longest = max(longest, time.monotonic() - self.look().last_step)
            time.sleep(0.2)
        assert self.records.newest == before, f"{name}: attempt {self.records.newest} began"
        self.note(name, longest)

    def note(self, name: str, seconds: float) -> None:
        """Adds a measurement."""
        self.seconds[name].append(seconds)
        print(f"{name}: {seconds:.2f} s", flush=True)

    def node_of_job(self, most: int | None = None) -> str:
        """Returns a worker node with a pod of the job, and without the operator and the cluster's DNS.

        `most`: the greatest number of the job's pods that it may have; the others are moved away if need be.
        """
        counts = Counter(pod["spec"]["nodeName"] for pod in self.job.pods().values())
        nodes = sorted(node for node, count in counts.items() if most is None or count <= most)
        assert nodes, f"each node has more than {most} pods of the job: {dict(counts)}"
        free = [node for node in nodes if node not in other_pods.nodes()]
        if not free:
            other_pods.move(nodes[0])
        return (free or nodes)[0]

    def ready(self, node: str) -> bool:
        """Returns whether a node is Ready."""
        (found,) = (each for each in Kubectl().list("nodes") if each["metadata"]["name"] == node)
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"]["conditions"])

    def wait_running(self) -> None:
        """Waits until all pods are ready: a drained or lost pod is back."""
        size = self.job.spec["replicas"] + self.job.spec.get("spares", 0)
        wait_until("all pods", lambda: kind_report.count_ready(self.job.pods().values()) == size, timeout=NODE_SECONDS)
        self.wait("the whole group", lambda r: r.worlds.get(r.newest) == self.job.spec["replicas"], NODE_SECONDS)
        wait_until("the warm processes", lambda: self.are_warm(size), timeout=NODE_SECONDS)

    def are_warm(self, size: int) -> bool:
        """Returns whether workers can be forked in all pods, by the logs of these very pods.

        The log on the volume is that of all pods of a name, one after the other.
        """
        pods = kind_report.staying(self.job.pods().values())
        logs = (self.kubectl.try_("logs", pod, "-c", "trainer") for pod in pods)
        return (
            len(pods) == size
            and all(log.code == 0 and kind_report.is_warm(log.out) for log in logs)
            and kind_report.staying(self.job.pods().values()) == pods
        )

    def take_phases(self, fault: str) -> None:
        """Notes the phases of the recoveries since the last call."""
        known = {attempt for found in self.phases.values() for attempt in found}
        for one in self.job.get()["status"].get("recoveries", []):
            if one["attempt"] not in known:
                self.phases[fault][one["attempt"]] = one["seconds"]
                print(f"  attempt {one['attempt']}, {one['kind']}, {one['reason']}: {one['seconds']}", flush=True)


# --- faults -------------------------------------------------------------------------------------------------------


def kill_worker(cluster: Cluster, trial: int) -> None:
    pod = f"{cluster.job.name}-{trial % cluster.job.spec['replicas']}"
    before, since = cluster.look().newest, time.monotonic()
    cluster.kubectl("exec", pod, "-c", "trainer", "--", "python3", "-c", KILL_WORKER)
    cluster.recovered("worker killed (from the call of kubectl exec)", since, before)


def delete_pod(cluster: Cluster, trial: int) -> None:
    ordinal = trial % cluster.job.spec["replicas"]
    before, since = cluster.look().newest, time.monotonic()
    cluster.kubectl("delete", "pod", f"{cluster.job.name}-{ordinal}", "--wait=false", "--grace-period=1")
    cluster.recovered("pod 0 deleted" if ordinal == 0 else "another pod deleted", since, before)


def delete_pod_without_dns(cluster: Cluster, trial: int) -> None:
    """Deletes a pod while no name resolves; the pod that comes back finds its peers when DNS is back."""
    system, flags = Kubectl("kube-system"), ("deployment", "coredns")
    system("scale", *flags, "--replicas=0")
    try:
        wait_until("no DNS", lambda: not system.list("pods", "k8s-app=kube-dns"), timeout=120)
        before, since = cluster.look().newest, time.monotonic()
        pod = f"{cluster.job.name}-{trial % cluster.job.spec['replicas']}"
        cluster.kubectl("delete", "pod", pod, "--wait=false", "--grace-period=1")
        if cluster.job.spec.get("spares"):
            cluster.recovered("pod deleted without DNS, one spare", since, before)
    finally:
        system("scale", *flags, "--replicas=2")
        system("rollout", "status", *flags, "--timeout=120s", timeout=150)
    cluster.wait("steps with DNS", lambda r: r.newest > before and r.group_steps.get(r.newest, 0) >= 3, NODE_SECONDS)


def kill_operator(cluster: Cluster, trial: int) -> None:
    operator = Kubectl(OPERATOR_NAMESPACE)
    label = ("-l", "app.kubernetes.io/name=dtj-operator")
    operator("delete", "pod", *label, "--grace-period=0", "--force", "--wait=false")
    pod = f"{cluster.job.name}-{trial % cluster.job.spec['replicas']}"
    before, since = cluster.look().newest, time.monotonic()
    cluster.kubectl("delete", "pod", pod, "--wait=false", "--grace-period=1")
    cluster.recovered("operator killed, pod deleted", since, before)
    operator("rollout", "status", "deployment", *label, "--timeout=120s", timeout=150)


def drain(cluster: Cluster, trial: int) -> None:
    node = cluster.node_of_job()
    before, since = cluster.look().newest, time.monotonic()
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--grace-period=1", "--timeout=120s")
    try:
        Kubectl()("drain", node, *flags, timeout=150)
        cluster.recovered("node drained", since, before)
    finally:
        Kubectl()("uncordon", node)


def stop_kubelet(cluster: Cluster, trial: int) -> None:
    node = cluster.node_of_job()
    docker("exec", node, "systemctl", "stop", "kubelet")
    try:
        cluster.undisturbed("kubelet stopped for 20 s (longest time without a step)", 20)
    finally:
        docker("exec", node, "systemctl", "start", "kubelet")
    wait_until(f"{node} to be Ready", lambda: cluster.ready(node), timeout=NODE_SECONDS)


def pause_api_server(cluster: Cluster, trial: int) -> None:
    node, control_plane = cluster.node_of_job(), kind.nodes()[0]
    docker("exec", control_plane, "pkill", "-STOP", "-x", "kube-apiserver")
    try:
        cluster.undisturbed("API server paused (longest time without a step)", PAUSE_SECONDS / 2)
        before, since = cluster.look().newest, time.monotonic()
        docker("exec", node, "sh", "-c", KILL_WORKERS_OF_NODE)
        # Nothing here may call the API server before it runs again.
        wait_until("steps without an API server", lambda: cluster.look().newest > before, timeout=PAUSE_SECONDS / 2)
    finally:
        docker("exec", control_plane, "pkill", "-CONT", "-x", "kube-apiserver")
    cluster.recovered("API server paused, workers killed", since, before)
    wait_until("the API server", lambda: Kubectl().try_("get", "nodes").code == 0, timeout=NODE_SECONDS)


def stop_node(cluster: Cluster, trial: int) -> None:
    least = cluster.job.spec.get("elastic", {}).get("minReplicas", 0)
    node = cluster.node_of_job(cluster.job.spec["replicas"] - least if cluster.elastic else None)
    before, stopped = cluster.look().newest, time.monotonic()
    docker("stop", "-t", "0", node)
    try:
        wait_until(f"{node} to be seen lost", lambda: not cluster.ready(node), timeout=NODE_SECONDS)
        cluster.note("node stopped -> NotReady", time.monotonic() - stopped)
        if cluster.elastic:
            # Mostly long before the node is NotReady, because the agents' heartbeats are sooner.
            cluster.recovered("node stopped -> training on the survivors", stopped, before, NODE_SECONDS)
        else:
            wait_until("the condition Restarting", lambda: is_true(cluster.job.get(), "Restarting"), timeout=120)
    finally:
        docker("start", node)
        subprocess.run([sys.executable, "-m", "hack.cluster", "heal-network"], check=True, timeout=120)
    wait_until(f"{node} to be Ready", lambda: cluster.ready(node), timeout=NODE_SECONDS)
    since, full = time.monotonic(), cluster.job.spec["replicas"]
    grown = cluster.wait("the whole group", lambda r: r.newest > before and whole(r, full), NODE_SECONDS)
    # Negative if the node's last pod was recreated elsewhere, or was up before the node was seen Ready.
    cluster.note("node Ready -> the whole group trains", cluster.records.first_steps[grown] - since)


def whole(records: Records, size: int) -> int:
    """Returns the newest attempt if it has all ranks and has done a step, else 0."""
    is_whole = records.worlds.get(records.newest) == size and records.group_steps.get(records.newest)
    return records.newest if is_whole else 0


@contextmanager
def dropped(node: str, *rules: tuple[str, ...]) -> Iterator[None]:
    """Drops packets in a node meanwhile."""
    try:
        for rule in rules:
            docker("exec", node, "iptables", "-I", *rule, "-j", "DROP")
        yield
    finally:
        for rule in rules:
            docker("exec", node, "iptables", "-D", *rule, "-j", "DROP")


def cut_nodes(cluster: Cluster, trial: int) -> None:
    """Cuts the pods of two worker nodes off from each other, which the API server does not notice."""
    node = cluster.node_of_job()
    others = [each for each in Kubectl().list("nodes") if each["metadata"]["name"] not in (node, kind.nodes()[0])]
    rules = [("FORWARD", flag, each["spec"]["podCIDR"]) for each in others for flag in ("-s", "-d")]
    before = cluster.look().newest
    with dropped(node, *rules):
        time.sleep(CUT_SECONDS)
    cluster.recovered(f"nodes cut off from each other for {CUT_SECONDS:.0f} s (from the end)", time.monotonic(), before)


def cut_from_api_server(cluster: Cluster, trial: int) -> None:
    node = cluster.node_of_job()
    (plane,) = (each for each in Kubectl().list("nodes") if each["metadata"]["name"] == kind.nodes()[0])
    address = next(a["address"] for a in plane["status"]["addresses"] if a["type"] == "InternalIP")
    with dropped(node, ("OUTPUT", "-d", address), ("FORWARD", "-d", address)):
        cluster.undisturbed("node cut off from the API server (longest time without a step)", CUT_SECONDS)


FAULTS: dict[str, tuple[Callable[[Cluster, int], None], int]] = {
    "worker": (kill_worker, 1), "pod": (delete_pod, 1), "operator": (kill_operator, 5),
    "dns": (delete_pod_without_dns, 5), "drain": (drain, 5),
    "kubelet": (stop_kubelet, 10), "partition": (cut_nodes, 5), "partition-api": (cut_from_api_server, 10),
    "api-server": (pause_api_server, 10), "node": (stop_node, 5),
}  # fmt: skip
"""Each fault, and how many of the cheap ones there are for one of it."""


# --- the run ------------------------------------------------------------------------------------------------------


def make_job(kubectl: Kubectl, shared: Path, name: str, args: argparse.Namespace, **environ: str) -> Job:
    """Creates a job that runs torch_script.py from a ConfigMap."""
    images = subprocess.run(
        [sys.executable, "-m", "hack.images", "names"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    variables = {"OMP_NUM_THREADS": "1", "CHAOS_STEP_SECONDS": str(STEP_SECONDS), **environ}
    container: Object = {
        "name": "trainer", "workingDir": "/app",
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "volumeMounts": [{"name": "script", "mountPath": MOUNT, "readOnly": True}],
        # Without a request the kernel would give any other process of the machine 500 times as much.
        "resources": {"requests": {"cpu": "250m"}},
    }  # fmt: skip
    pod = {"containers": [container], "volumes": [{"name": "script", "configMap": {"name": "chaos"}}]}
    spec: Object = {
        "replicas": args.replicas, "image": dict(line.split("=", 1) for line in images.split())["trainer"],
        "backend": "gloo", "entrypoint": {"script": f"{MOUNT}/torch_script.py"},
        "checkpoint": {"volume": {"claimName": "shared"}, "everySteps": 50, "keep": 3},
        "restart": {"maxRestarts": 1000, "maxRestartsWithoutProgress": 1000}, "template": {"spec": pod},
    }  # fmt: skip
    if args.spares:
        spec["spares"] = args.spares
    if args.elastic:
        least, most = map(int, args.elastic.split(","))
        spec["elastic"] = {"minReplicas": least, "maxReplicas": most}
    return Job(kubectl, name, shared / kubectl.namespace, spec).create()


def check(cluster: Cluster, shared: Path, args: argparse.Namespace) -> list[str]:
    """Ends the job, runs the same steps without a fault, and returns what the oracle finds."""
    (cluster.job.folder / "finish").touch()
    cluster.job.wait("Complete", END_SECONDS)
    records = cluster.look()
    steps = max(one.step for one in records.steps)
    calm_args = argparse.Namespace(**{**vars(args), "elastic": "", "spares": 0})
    calm = make_job(cluster.kubectl, shared, "calm", calm_args, CHAOS_STEPS=str(steps), CHAOS_STEP_SECONDS="0")
    calm.wait("Complete", END_SECONDS + 0.1 * steps)
    undisturbed = Records()
    undisturbed.read(calm.folder / "log")
    found = oracle.findings(records, by_step(undisturbed), losses=not args.elastic)
    cluster.job.delete()
    calm.delete()
    wait_until("the pods to end", lambda: not cluster.job.pods() and not calm.pods(), timeout=120)
    for node in kind.nodes()[1:]:
        search = ["docker", "exec", node, "pgrep", "-fa", "torch_script.py"]
        left = subprocess.run(search, capture_output=True, text=True, timeout=60, check=False)
        found += [f"{node} still runs {line}" for line in left.stdout.splitlines()]
    return found


def main() -> int:
    """Disturbs one job with all faults in turn. Returns 1 if the oracle finds anything."""
    p = argparse.ArgumentParser(prog="python -m tests.chaos.on_kind", description=__doc__)
    p.add_argument("--trials", type=int, default=10, help="of the faults that take seconds; fewer of the others")
    p.add_argument("--replicas", type=int, default=3)
    p.add_argument("--spares", type=int, default=0)
    p.add_argument("--elastic", default="", metavar="MIN,MAX", help="losses are not compared then, samples are")
    p.add_argument("--logs", type=Path, metavar="FOLDER", help="copy the checkpoint volume there at the end")
    p.add_argument("--only", action="append", choices=[*FAULTS], help="only this fault; repeatable")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the measurements there as JSON")
    args = p.parse_args()
    os.environ.update({key: value for key, value in environment().items() if key not in os.environ or key == "PATH"})
    # Otherwise `timeout` would leave the namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shared = Path(os.environ["DTJ_SHARED_DIR"])
    kubectl = make_namespace(f"chaos-{uuid.uuid4().hex[:4]}", shared)
    try:
        kubectl("create", "configmap", "chaos", f"--from-file={HERE / 'torch_script.py'}")
        cluster = Cluster(kubectl, make_job(kubectl, shared, "chaos", args), bool(args.elastic))
        cluster.wait("the first steps", lambda records: whole(records, args.replicas), START_SECONDS)
        cluster.wait_running()
        load = os.getloadavg()[0]
        for name in args.only or FAULTS:
            inject, rarity = FAULTS[name]
            for trial in range(max(1, args.trials // rarity) * (args.replicas if name == "pod" else 1)):
                inject(cluster, trial)
                cluster.wait_running()
                cluster.take_phases(name)
        found = check(cluster, shared, args)
        print(kind_report.table(cluster.seconds), kind_report.phase_table(cluster.phases), sep="\n\n")
        print(f"{os.cpu_count()} cores, load {load:.1f} before the first fault; {args.replicas} pods of one rank")
        verdict = "the oracle holds: all steps equal those of the calm run"
        print("\n".join(found) or verdict)
        if args.out:
            phases = [seconds for recoveries in cluster.phases.values() for seconds in recoveries.values()]
            text = "\n".join(found) or f"{verdict[0].upper()}{verdict[1:]}."
            args.out.write_text(json.dumps({"seconds": cluster.seconds, "phases": phases, "verdict": text}))
        return 1 if found else 0
    finally:
        try:
            if args.logs:
                shutil.copytree(shared / kubectl.namespace, args.logs, dirs_exist_ok=True)
        finally:
            drop_namespace(kubectl, shared)


if __name__ == "__main__":
    raise SystemExit(main())
