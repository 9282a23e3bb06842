"""Repairs of the children that somebody has deleted or changed."""

from __future__ import annotations

from dataclasses import replace

from dtj_contract import names
from dtj_core.api import launcher
from dtj_core.plan import avoided_nodes, children, network_policy
from dtj_core.plan.job import Job
from dtj_core.plan.model import Annotate, Apply, Object, Observed, Settings
from dtj_core.plan.placement import read_placement
from dtj_core.plan.pod_template import delivery_of


def repairs(
    job: Job, observed: Observed, pods: tuple[Object, ...], wanted: int, now: float, settings: Settings
) -> tuple[Apply | Annotate, ...]:
    """Returns the children that somebody deleted or changed, as they should be.

    `wanted`: the number of pods that the StatefulSet should have now.

    No repair restarts a running pod. No repair is tried while the API server rejects one. A
    training that runs needs none of them, so it continues without.
    """
    if observed.rejection or observed.refusal:
        return ()
    found: list[Apply | Annotate] = []
    if any(children.is_waiting_for_volumes(pod, job, now) for pod in pods):
        # The Secret may have been deleted. RBAC does not let the operator read Secrets, so create
        # it if missing, with the key that its agents have. Never overwrite it: that key may be of an
        # older master key than the operator knows.
        found.append(Apply(body=children.secret(job, settings, observed.stateful_set), if_missing=True))
    if observed.service is None or _is_edited_service(observed.service, children.service(job, settings)):
        found.append(Apply(body=children.service(job, settings)))
    child = observed.stateful_set
    if child is not None:
        edited = child["spec"].get("replicas") != wanted or _is_edited(child)
        avoided = avoided_nodes.active_nodes(job.status, now)
        moved = avoided_nodes.excluded_nodes(child["spec"].get("template") or {}) != avoided
        if edited or moved or children.applied_hash(child) is None:
            # The pods that a job has may fill its quota, which would reject another one in a dry run.
            adds_pods = wanted > child["spec"].get("replicas", 1)
            found.append(Apply(body=_repaired(job, child, settings, avoided, wanted), adds_pods=adds_pods))
        else:
            found += network_policy.updates(job, child, settings, children.metadata(job, job.policy_name))
    return tuple(found)


def _repaired(job: Job, child: Object, settings: Settings, avoided: tuple[str, ...], pods: int) -> Object:
    """Returns the StatefulSet as it should be, with the agent image of its running pods.

    A group has one agent version. All pods of an elastic group begin with the same size, and the
    agents learn of a new size from the operator's message. Fields that somebody has added and the
    operator does not write (a node selector where there was none) stay.
    """
    image = children.annotation(child, names.ANNOTATION_AGENT_IMAGE) or _live_agent_image(child) or settings.agent_image
    floor = job.status.get("attempt", 0) + 1
    settings = replace(settings, agent_image=image, agent_delivery=delivery_of(child["spec"].get("template") or {}))
    body = children.stateful_set(job, settings, floor, avoided, pods, read_placement(child))
    if job.spec.elastic is not None:
        _keep_variables(body, child, job.trainer_container)
    _keep_launcher(body, child, job.trainer_container)
    written = body["metadata"]["annotations"]
    written[names.ANNOTATION_REPAIRED] = str(child["metadata"].get("generation", 1))
    # A repair leaves the policy and the key as they are.
    for name in (names.ANNOTATION_NETWORK_POLICY, names.ANNOTATION_AGENT_KEY):
        written.pop(name, None)
        if children.annotation(child, name):
            written[name] = children.annotation(child, name)
    return body


def _keep_variables(body: Object, child: Object, container: str) -> None:
    """Replaces what scaling would change in the template of `body` by what the StatefulSet `child` has."""
    live = {
        entry.get("name"): entry.get("value")
        for entry in _find_container(child, container).get("env") or ()
        if entry.get("name") in (names.ENV_REPLICAS, names.ENV_GENERATION, names.ENV_ATTEMPT_FLOOR)
    }
    for entry in _find_container(body, container)["env"]:
        if live.get(entry["name"]) is not None:
            entry["value"] = live[entry["name"]]


def _keep_launcher(body: Object, child: Object, container: str) -> None:
    """Keeps the launcher with which the pods of `child` run, because an older version did not take it out."""
    live, new = _find_container(child, container), _find_container(body, container)
    command = live.get("command") or []
    if "--" not in command or not launcher.find(command[command.index("--") + 1 :] or [""])[0]:
        return
    new["command"] = command
    own = [entry.get("value") for entry in live.get("env") or () if entry.get("name") == names.ENV_PROCESSES_PER_POD]
    for entry in new["env"]:
        if entry["name"] == names.ENV_PROCESSES_PER_POD and own:
            entry["value"] = own[0]


def _find_container(stateful_set: Object, name: str) -> Object:
    containers = stateful_set["spec"].get("template", {}).get("spec", {}).get("containers") or ()
    return next((each for each in containers if each.get("name") == name), {})


def _is_edited(child: Object) -> bool:
    """Returns whether somebody has edited the spec since it was created or last repaired.

    Generations are counted because specs can't be compared: the API server fills in defaults, an
    admission plugin may change what is applied, and another version of the operator renders another
    template. None of these may lead to an apply at every look. Undoing an edit raises the
    generation by one or leaves it.
    """
    undone = children.annotation(child, names.ANNOTATION_REPAIRED)
    generation = child["metadata"].get("generation", 1)
    return bool(generation > (int(undone) if undone.isdecimal() else 0) + 1)


def _is_edited_service(child: Object, wanted: Object) -> bool:
    """Returns whether one of the two fields differs that the agents need to find each other."""
    return any(child["spec"].get(field) != wanted["spec"][field] for field in ("selector", "publishNotReadyAddresses"))


def _live_agent_image(child: Object) -> str:
    pod = child["spec"].get("template", {}).get("spec", {})
    installers = [c for c in pod.get("initContainers") or () if c.get("name") == names.INIT_CONTAINER]
    volumes = [v["image"] for v in pod.get("volumes") or () if v.get("name") == names.VOLUME_AGENT and v.get("image")]
    found = [c.get("image") for c in installers] + [image.get("reference") for image in volumes]
    return str(next(filter(None, found), ""))
