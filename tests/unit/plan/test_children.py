"""The children are what the contract says, and everything that the user wrote is still in them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import children, plan
from dtj_core.plan.job import Job
from dtj_core.plan.model import Apply, Observed
from dtj_core.plan.times import rfc3339
from tests.unit.plan.build import NOW, SETTINGS, UID, agent, condition, container, ended, job, pod, pods, service, started


def applied(**spec: Any) -> dict[str, Any]:
    """Children by kind."""
    actions = plan(job(**spec), Observed(), NOW, SETTINGS).actions
    return {action.body["kind"]: action.body for action in actions if isinstance(action, Apply)}


def pod_spec(**spec: Any) -> Any:
    return applied(**spec)["StatefulSet"]["spec"]["template"]["spec"]


def trainer(**spec: Any) -> Any:
    return pod_spec(**spec)["containers"][0]


def env(**spec: Any) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in trainer(**spec)["env"]}


def template(pod: Any = None, **container: Any) -> Any:
    return {"template": {"spec": {"containers": [{"name": "trainer", **container}], **(pod or {})}}}


def test_every_child_is_owned_by_the_job_and_carries_its_labels() -> None:
    for child in applied().values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, False)
        assert child["metadata"]["labels"] == {
            "app.kubernetes.io/managed-by": "dtj-operator",
            "training.dtj.dev/job-name": "digits",
        }
        assert child["metadata"]["namespace"] == "team"


def test_the_key_of_the_agents_is_64_hex_digits_and_the_same_each_time() -> None:
    key = base64.b64decode(applied()["Secret"]["data"]["key"]).decode()
    assert len(key) == 64
    assert int(key, 16)
    assert key == children.agent_key(UID, SETTINGS) != children.agent_key("other", SETTINGS)


def test_the_service_is_headless_and_publishes_pods_that_are_not_ready() -> None:
    spec = applied()["Service"]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["ports"] == [{"name": "dtj-agent", "port": 29400, "protocol": "TCP"}]


def test_the_stateful_set_starts_all_pods_at_once_and_never_replaces_one_by_itself() -> None:
    spec = applied()["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (3, "digits")
    assert (spec["podManagementPolicy"], spec["updateStrategy"]) == ("Parallel", {"type": "OnDelete"})
    assert spec["template"]["metadata"]["labels"].items() >= spec["selector"]["matchLabels"].items()


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        ({"entrypoint": {"module": "m", "args": ["--x", "1"]}}, ["python3", "-u", "-m", "m", "--x", "1"]),
        ({"entrypoint": {"script": "/a.py"}}, ["python3", "-u", "/a.py"]),
        ({"entrypoint": None, **template(command=["bash", "-c"], args=["train"])}, ["bash", "-c", "train"]),
    ],
    ids=["a module", "a script", "the container's own command"],
)
def test_the_agent_is_the_first_process_and_runs_the_user_s_command(spec: dict[str, Any], command: list[str]) -> None:
    container = trainer(**spec)
    assert container["command"] == ["python3", "/dtj/bin/agent.pyz", "--", *command]
    assert "args" not in container


def test_the_agent_comes_into_the_pod_from_the_operator_s_image() -> None:
    first = pod_spec(**template({"initContainers": [{"name": "mine", "image": "x"}]}))["initContainers"]
    assert [(c["name"], c["image"]) for c in first] == [("dtj-agent", "dtj-operator:test"), ("mine", "x")]
    assert first[0]["command"] == ["cp", "/dtj/agent.pyz", "/dtj/bin/agent.pyz"]


def test_the_environment_is_that_of_the_contract() -> None:
    found = env(checkpoint={"volume": {"claimName": "c"}, "mountPath": "/mnt/", "everySteps": 5, "keep": 2}, processesPerPod=2)
    plain = {k: v for k, v in found.items() if isinstance(v, str)}
    assert plain == {
        "DTJ_JOB": "digits", "DTJ_JOB_UID": UID, "DTJ_NAMESPACE": "team", "DTJ_REPLICAS": "3", "DTJ_PROCESSES_PER_POD": "2",
        "DTJ_PEERS": "digits-{}.digits:29400", "DTJ_LISTEN": "0.0.0.0:29400", "DTJ_ATTEMPT_FLOOR": "1", "DTJ_MAX_RESTARTS": "10",
        "DTJ_RESTART_WINDOW_SECONDS": "3600", "DTJ_BACKEND": "gloo", "DTJ_SECRET_FILE": "/dtj/secret/key",
        "DTJ_STATE_DIR": "/dtj/state", "DTJ_TERMINATION_LOG": "/dev/termination-log", "DTJ_GRACE_SECONDS": "25",
        "DTJ_CHECKPOINT_DIR": "/mnt/team/digits", "DTJ_CHECKPOINT_EVERY_STEPS": "5", "DTJ_CHECKPOINT_KEEP": "2",
        "HOME": "/tmp", "USER": "trainer",
    }  # fmt: skip
    fields = {k: v["fieldRef"]["fieldPath"] for k, v in found.items() if isinstance(v, dict)}
    assert fields == {
        "DTJ_ORDINAL": "metadata.labels['apps.kubernetes.io/pod-index']",
        "DTJ_POD_NAME": "metadata.name",
        "DTJ_POD_IP": "status.podIP",
        "DTJ_NODE_NAME": "spec.nodeName",
    }


def test_the_stop_grace_is_in_the_environment_only_where_it_is_given() -> None:
    """So the pods of jobs that were made before the field was are not rendered anew."""

    def given(**spec: Any) -> Any:
        return {one["name"]: one.get("value") for one in pod_spec(**spec)["containers"][0]["env"]}.get("DTJ_STOP_GRACE_SECONDS")

    assert given() is None
    assert given(restart={"stopGraceSeconds": 30}) == "30.0"


def test_a_pod_meets_the_restricted_standard_by_default() -> None:
    spec = pod_spec(**template({"containers": [{"name": "trainer"}, {"name": "sidecar", "image": "s"}]}))
    security = spec["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["seccompProfile"]) == (
        True,
        65532,
        {"type": "RuntimeDefault"},
    )
    for each in (*spec["containers"], *spec["initContainers"]):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert "readOnlyRootFilesystem" not in spec["containers"][1]["securityContext"]


def test_what_the_user_says_about_security_stands() -> None:
    spec = pod_spec(
        **template(
            {"securityContext": {"runAsUser": 0, "fsGroup": 7}, "automountServiceAccountToken": True, "hostNetwork": True},
            securityContext={"capabilities": {"add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": False},
        )
    )
    assert spec["securityContext"]["runAsUser"] == 0
    assert spec["securityContext"]["fsGroup"] == 7
    assert "runAsNonRoot" not in spec["securityContext"]
    assert spec["automountServiceAccountToken"] is True
    assert spec["containers"][0]["securityContext"] == {
        "capabilities": {"add": ["IPC_LOCK"], "drop": ["ALL"]},
        "readOnlyRootFilesystem": False,
        "allowPrivilegeEscalation": False,
    }
    assert "HOME" not in {e["name"] for e in spec["containers"][0]["env"]}


def test_who_says_non_root_only_keeps_the_user_of_the_image() -> None:
    assert "runAsUser" not in pod_spec(**template({"securityContext": {"runAsNonRoot": True}}))["securityContext"]


def test_a_privileged_container_gets_no_setting_that_contradicts_it() -> None:
    assert "allowPrivilegeEscalation" not in trainer(**template(securityContext={"privileged": True}))["securityContext"]


def test_every_field_that_the_user_wrote_is_kept() -> None:
    written: dict[str, Any] = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}, "future": 1},
        "spec": {
            "containers": [
                {"name": "pytorch", "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": 1}}, "future": [None]},
                {"name": "trainer", "image": None, "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            ],
            "volumes": [{"name": "data", "nfs": {"server": "s", "path": "/p", "new": True}}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 120,
            "newIn2030": {"deep": {"er": [1, 2]}},
        },
    }
    made = applied(template=written)["StatefulSet"]["spec"]["template"]

    def contained(part: Any, whole: Any, path: str = "") -> None:
        if isinstance(part, dict):
            for key, value in part.items():
                if value is not None or "future" in path:
                    contained(value, whole[key], f"{path}.{key}")
        elif isinstance(part, list) and part and isinstance(part[0], dict) and "name" in part[0]:
            by_name = {item["name"]: item for item in whole}
            for item in part:
                contained(item, by_name[item["name"]], path)
        else:
            assert part == whole, path

    contained(written, made)
    environment = {e["name"]: e.get("value") for e in made["spec"]["containers"][1]["env"]}
    assert environment["DTJ_GRACE_SECONDS"] == "115"


def test_the_planner_does_not_change_the_template_of_the_job() -> None:
    written = template({"securityContext": {}}, env=[], volumeMounts=[])
    body = job(**written)
    plan(body, Observed(), NOW, SETTINGS)
    assert body["spec"]["template"] == template({"securityContext": {}}, env=[], volumeMounts=[])["template"]


def test_an_own_tmp_or_shm_takes_the_place_of_ours() -> None:
    mounts = [{"name": "big", "mountPath": "/dev/shm/"}]
    spec = pod_spec(**template({"volumes": [{"name": "big", "emptyDir": {"sizeLimit": "8Gi"}}]}, volumeMounts=mounts))
    assert names.VOLUME_SHM not in [volume["name"] for volume in spec["volumes"]]
    assert names.VOLUME_TMP in [volume["name"] for volume in spec["volumes"]]


@pytest.mark.parametrize(
    ("volume", "source"),
    [
        ({"claimName": "c"}, {"persistentVolumeClaim": {"claimName": "c"}}),
        ({"hostPath": {"path": "/x"}}, {"hostPath": {"path": "/x", "type": "Directory"}}),
        ({"source": {"nfs": {"server": "s", "new": [1]}}}, {"nfs": {"server": "s", "new": [1]}}),
    ],
    ids=["a claim", "a host path", "any other source"],
)
def test_the_checkpoint_volume_is_mounted(volume: Any, source: Any) -> None:
    spec = pod_spec(checkpoint={"volume": volume})
    assert {"name": "dtj-checkpoint", **source} in spec["volumes"]
    assert {"name": "dtj-checkpoint", "mountPath": "/checkpoints"} in spec["containers"][0]["volumeMounts"]


def test_without_checkpoints_there_is_neither_volume_nor_environment() -> None:
    assert "dtj-checkpoint" not in str(pod_spec())
    assert not [name for name in env() if name.startswith("DTJ_CHECKPOINT")]


def test_every_mount_of_ours_has_its_volume_and_every_volume_its_mount() -> None:
    spec = pod_spec(checkpoint={"volume": {"claimName": "c"}})
    volumes = [volume["name"] for volume in spec["volumes"]]
    mounted = [mount["name"] for mount in spec["containers"][0]["volumeMounts"]]
    assert sorted(volumes) == sorted(mounted)


def test_the_hash_is_of_what_shapes_pods_and_of_no_default() -> None:
    def digest(**spec: Any) -> str:
        return Job.from_object(job(**spec)).spec_hash

    assert digest() == digest(backend="auto", restart={"maxRestarts": 10, "windowSeconds": 3600}, suspend=True)
    assert digest() == digest(ttlSecondsAfterFinished=1, cleanPodPolicy="None", activeDeadlineSeconds=9)
    changed = [{"replicas": 2}, {"image": "b"}, {"backend": "gloo"}, {"restart": {"maxRestarts": 1}}, {"processesPerPod": 2}]
    changed.append({"restart": {"stopGraceSeconds": 30}})
    assert len({digest(), *(digest(**change) for change in changed), digest(**template({"future": 1}))}) == len(changed) + 2


def test_an_upgrade_of_the_operator_leaves_running_jobs_alone() -> None:
    from dataclasses import replace

    stored, child = started()
    newer = replace(SETTINGS, agent_image="dtj-operator:newer")
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent())
    assert plan(stored, seen, NOW, newer).actions == ()


@pytest.mark.parametrize("missing", ["service", "replicas", "annotation"])
def test_what_somebody_deleted_or_changed_is_mended(missing: str) -> None:
    stored, child = started()
    seen = service() if missing != "service" else None
    if missing == "replicas":
        child = {**child, "spec": child["spec"] | {"replicas": 1}}
    if missing == "annotation":
        child = {**child, "metadata": child["metadata"] | {"annotations": {}}}
    actions = plan(stored, Observed(stateful_set=child, service=seen, pods=pods(), agent=agent()), NOW, SETTINGS).actions
    kinds = [action.body["kind"] for action in actions if isinstance(action, Apply)]
    assert kinds == (["Service"] if missing == "service" else ["StatefulSet"])


def test_a_deleted_stateful_set_is_made_again_above_the_attempts_before() -> None:
    stored, child = started()
    seen = Observed(stateful_set=child, service=service(), pods=pods(), agent=agent(attempt=4))
    running = plan(stored, seen, NOW, SETTINGS)
    again = plan(job(running.status), Observed(service=service()), NOW + 1, SETTINGS)
    made = [a.body for a in again.actions if isinstance(a, Apply) and a.body["kind"] == "StatefulSet"]
    floor = [e["value"] for e in made[0]["spec"]["template"]["spec"]["containers"][0]["env"] if e["name"] == "DTJ_ATTEMPT_FLOOR"]
    assert floor == ["5"]
    assert condition(again.status, "Restarting")["status"] == "True"
    assert condition(again.status, "Restarting")["reason"] == "PodDeleted"


def test_an_object_of_somebody_else_in_the_place_of_a_child_is_not_touched() -> None:
    foreign = {"kind": "Service", "metadata": {"name": "digits", "uid": "x"}, "spec": {}}
    blocked = plan(job(), Observed(service=foreign), NOW, SETTINGS)
    assert blocked.actions == ()
    assert condition(blocked.status, "Running")["reason"] == "ChildConflict"
    assert (
        "Service digits already exists and does not belong to this job: delete it"
        in condition(blocked.status, "Running")["message"]
    )
    assert [event.reason for event in blocked.events] == ["ChildConflict"]
    assert blocked.requeue_after == 30
    again = plan(job(blocked.status), Observed(service=foreign), NOW + 30, SETTINGS)
    assert (again.events, again.status) == ((), blocked.status)
    assert plan(job(blocked.status), Observed(), NOW + 60, SETTINGS).actions


def test_children_of_a_deleted_job_of_the_same_name_are_waited_for() -> None:
    waiting = plan(job(), Observed(service=service(owner_uid="earlier")), NOW, SETTINGS)
    assert waiting.actions == ()
    assert "deleted job of the same name" in condition(waiting.status, "Running")["message"]
    assert waiting.requeue_after == 2


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ([], [30, 30]),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], [None, 30, 30]),
        ([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 900}], [900, 30]),
        ([{"operator": "Exists"}], [None]),
    ],
    ids=["none", "of something else", "an own time", "of everything"],
)
def test_pods_of_a_silent_node_are_given_up_after_half_a_minute_unless_the_user_says_otherwise(given: Any, seconds: Any) -> None:
    assert [t.get("tolerationSeconds") for t in pod_spec(**template({"tolerations": given}))["tolerations"]] == seconds


WAITING = {
    "mounting for 10 s": ({}, 10, True),
    "mounting for a moment": ({}, 9, False),
    "its init container waits": (
        {"initContainerStatuses": [container("dtj-agent", waiting={"reason": "PodInitializing"})]},
        70,
        True,
    ),
    "asked for a while ago": ({}, 60, False),
    "asked for a minute ago": ({}, 79, True),
    "its init container runs": ({"initContainerStatuses": [container("dtj-agent")]}, 60, False),
    "it runs": ({"containerStatuses": [container()]}, 60, False),
    "it ran, and is started again": ({"containerStatuses": [container(last=ended("", 1), waiting={"reason": "x"})]}, 60, False),
}


@pytest.mark.parametrize(("status", "seconds", "made"), WAITING.values(), ids=WAITING)
def test_a_secret_that_a_waiting_pod_may_miss_is_made_again_if_it_is_gone(status: Any, seconds: int, made: bool) -> None:
    """The key is the same, so the pods that run know it."""
    stored, child = started()
    waiting = pod(1, **({"phase": "Pending"} | status))
    waiting["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), waiting, pod(2)), agent=agent())
    actions = plan(stored, seen, NOW + seconds, SETTINGS).actions
    assert [(a.body["kind"], a.if_missing) for a in actions if isinstance(a, Apply)] == ([("Secret", True)] if made else [])
    if made:
        assert isinstance(actions[0], Apply)
        made_first, made_again = applied()["Secret"], actions[0].body
        assert made_again["data"] == made_first["data"]
        (owner,) = made_again["metadata"]["ownerReferences"]
        assert owner["uid"] == UID
        assert owner["controller"] is False, "a later job of this name could not become a second controller"


def test_a_pod_that_pulls_its_image_has_its_volumes_and_nothing_is_asked_for_it() -> None:
    stored, child = started()
    sandbox = {"type": "PodReadyToStartContainers", "status": "True"}
    pulling = pod(
        1, phase="Pending", conditions=[sandbox], containerStatuses=[container(waiting={"reason": "ContainerCreating"})]
    )
    pulling["metadata"]["creationTimestamp"] = rfc3339(NOW)
    seen = Observed(stateful_set=child, service=service(), pods=(pod(0), pulling, pod(2)), agent=agent())
    assert plan(stored, seen, NOW + 10, SETTINGS).actions == ()


def test_a_pod_on_its_nodes_network_resolves_the_names_of_its_peers() -> None:
    assert pod_spec(**template({"hostNetwork": True}))["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod_spec(**template({"hostNetwork": True, "dnsPolicy": "None"}))["dnsPolicy"] == "None"
    assert "dnsPolicy" not in pod_spec(**template())


def test_a_pod_on_no_node_misses_nothing_yet_and_one_that_waits_is_looked_at_again() -> None:
    stored, child = started()
    waiting = pod(0, phase="Pending")
    waiting["metadata"]["creationTimestamp"] = rfc3339(NOW)
    others = tuple(pod(o, phase="Pending") | {"spec": {}} for o in (1, 2))
    seen = Observed(stateful_set=child, service=service(), pods=(waiting, *others))
    assert plan(stored, seen, NOW + 1, SETTINGS).requeue_after == 10
    waiting["spec"] = {}
    wanted = plan(stored, seen, NOW + 100, SETTINGS)
    assert (wanted.actions, wanted.requeue_after) == ((), None)
