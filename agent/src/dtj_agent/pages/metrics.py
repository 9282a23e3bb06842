"""/metrics: the facts of /status as Prometheus text (exposition format 0.0.4). Pure."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from dtj_contract.agent_status import PHASES, AgentStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = Tuple[Dict[str, str], Optional[float]]


def render(status: AgentStatus) -> bytes:
    """Returns the page that shows the same facts as `status`."""
    progress, checkpoint = status["progress"] or {}, status["checkpoint"] or {}
    last = status["recoveries"][-1] if status["recoveries"] else None
    restarts = status["restarts"]
    custom: List[Sample] = [({"name": name}, value) for name, value in sorted((progress.get("metrics") or {}).items())]
    phases: List[Sample] = [({"phase": phase}, float(phase == status["phase"])) for phase in PHASES]
    slow: List[Sample] = [({"rank": str(one["rank"])}, one["ratio"]) for one in status["stragglers"]]
    kinds: List[Sample] = [({"kind": "InPlace"}, restarts["inPlace"]), ({"kind": "Pod"}, restarts["pod"])]
    families: List[Tuple[str, str, str, List[Sample]]] = [
        ("dtj_attempt", "gauge", "Number of the current attempt", [({}, status["attempt"])]),
        ("dtj_phase", "gauge", "1 for the phase that the group is in", phases),
        ("dtj_world_size", "gauge", "Ranks of the attempt", [({}, status["worldSize"])]),
        ("dtj_members", "gauge", "Agents connected to the coordinator", [({}, len(status["members"]))]),
        ("dtj_restarts_total", "counter", "Restarts of the group", kinds),
        ("dtj_restarts_counted_total", "counter", "Restarts that cost budget", [({}, restarts["counted"])]),
        ("dtj_productive_seconds", "gauge", "Training time whose result was kept", [({}, status["productiveSeconds"])]),
        ("dtj_step", "gauge", "Optimizer steps done, as the script reports", [({}, progress.get("step"))]),
        ("dtj_optimizer_steps", "gauge", "Counted in this attempt", [({}, progress.get("optimizerSteps"))]),
        ("dtj_total_steps", "gauge", "Optimizer steps planned", [({}, progress.get("totalSteps"))]),
        ("dtj_loss", "gauge", "Last reported loss", [({}, progress.get("loss"))]),
        ("dtj_samples_per_second", "gauge", "Last reported throughput", [({}, progress.get("samplesPerSecond"))]),
        ("dtj_progress_timestamp_seconds", "gauge", "When a step was last reported", [({}, progress.get("time"))]),
        ("dtj_checkpoint_step", "gauge", "Step of the newest checkpoint", [({}, checkpoint.get("step"))]),
        ("dtj_checkpoint_timestamp_seconds", "gauge", "When it was committed", [({}, checkpoint.get("time"))]),
        ("dtj_stragglers", "gauge", "Ranks whose own work takes longer than the others'", [({}, len(slow))]),
        ("dtj_straggler_ratio", "gauge", "Own time of a slow rank, to the median rank's", slow),
        ("dtj_worker_metric", "gauge", "Numbers that the training reports by name", custom),
    ]  # fmt: skip
    if last is not None:
        seconds: List[Sample] = [({"phase": phase}, value) for phase, value in last["seconds"].items()]
        families.append(("dtj_recovery_seconds", "gauge", "The last recovery by phase", seconds))
        families.append(
            ("dtj_recovery_lost_steps", "gauge", "Steps that the last recovery did again", [({}, last["lostSteps"])])
        )
    lines = []
    for name, kind, text, samples in families:
        shown = [(labels, value) for labels, value in samples if value is not None]
        if shown:
            lines += ["# HELP %s %s" % (name, text), "# TYPE %s %s" % (name, kind)]
            lines += ["%s%s %s" % (name, _labels(labels, status["job"]), repr(float(value))) for labels, value in shown]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Dict[str, str], job: str) -> str:
    pairs = ['%s="%s"' % (key, _escape(value)) for key, value in [("job", job), *labels.items()]]
    return "{%s}" % ",".join(pairs)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
