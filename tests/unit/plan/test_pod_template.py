"""The pod template keeps everything that the user wrote and adds what the contract names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dtj_contract import names
from dtj_core.plan import plan
from dtj_core.plan.job import Job
from dtj_core.plan.model import Observed
from dtj_core.plan.pod_template import pod_template
from tests.unit.plan.objects import (
    NOW,
    SETTINGS,
    UID,
    applied,
    job,
    template,
)


def pod_spec(**spec: Any) -> Any:
    return applied(**spec)["StatefulSet"]["spec"]["template"]["spec"]


def trainer(**spec: Any) -> Any:
    return pod_spec(**spec)["containers"][0]


def env(**spec: Any) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in trainer(**spec)["env"]}


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        ({"entrypoint": {"module": "m", "args": ["--x", "1"]}}, ["python3", "-u", "-m", "m", "--x", "1"]),
        ({"entrypoint": {"script": "/a.py"}}, ["python3", "-u", "/a.py"]),
        ({"entrypoint": None, **template(command=["bash", "-c"], args=["train"])}, ["bash", "-c", "train"]),
    ],
    ids=["a module", "a script", "the container's own command"],
)
def test_agent_is_the_first_process_and_runs_the_users_command(spec: dict[str, Any], command: list[str]) -> None:
    container = trainer(**spec)
    assert container["command"] == ["python3", "/dtj/bin/agent.pyz", "--", *command]
    assert "args" not in container


def test_agent_is_copied_from_the_operator_image() -> None:
    first = pod_spec(**template({"initContainers": [{"name": "mine", "image": "x"}]}))["initContainers"]
    assert [(c["name"], c["image"]) for c in first] == [("dtj-agent", "dtj-operator:test"), ("mine", "x")]
    assert first[0]["command"] == ["cp", "/dtj/agent.pyz", "/dtj/bin/agent.pyz"]


def test_agents_image_is_a_volume_if_the_installation_delivers_it_so() -> None:
    settings = replace(SETTINGS, agent_delivery="image-volume", image_pull_policy="IfNotPresent")
    spec = template({"initContainers": [{"name": "mine", "image": "x"}]})
    pod = pod_template(Job.from_object(job(**spec)), settings, {}, 1)["spec"]
    assert [container["name"] for container in pod["initContainers"]] == ["mine"]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "dtj-agent"]
    assert volume["image"] == {"reference": "dtj-operator:test", "pullPolicy": "IfNotPresent"}
    [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "dtj-agent"]
    assert mount == {"name": "dtj-agent", "mountPath": "/dtj/bin", "subPath": "dtj", "readOnly": True}
    assert "initContainers" not in pod_template(Job.from_object(job()), settings, {}, 1)["spec"]


def test_variables_of_a_job_may_name_those_of_the_operator() -> None:
    given = [{"name": "WANDB_RUN_ID", "value": "$(DTJ_JOB_UID)"}]
    for spec in ({"env": given}, template(env=given)):
        order = [one["name"] for one in trainer(**spec)["env"]]
        assert order.index("DTJ_JOB_UID") < order.index("WANDB_RUN_ID"), "the kubelet expands what stands before"


def test_environment_matches_the_contract() -> None:
    found = env(
        checkpoint={"volume": {"claimName": "c"}, "mountPath": "/mnt/", "everySteps": 5, "keep": 2}, processesPerPod=2
    )
    plain = {k: v for k, v in found.items() if isinstance(v, str)}
    assert plain == {
        "DTJ_JOB": "digits", "DTJ_JOB_UID": UID, "DTJ_NAMESPACE": "team", "DTJ_REPLICAS": "3",
        "DTJ_PROCESSES_PER_POD": "2", "DTJ_PEERS": "digits-{}.digits:29400", "DTJ_LISTEN": "0.0.0.0:29400",
        "DTJ_ATTEMPT_FLOOR": "1", "DTJ_MAX_RESTARTS": "10",
        "DTJ_MAX_RESTARTS_WITHOUT_PROGRESS": "20", "DTJ_GENERATION": "1",
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


def test_stop_grace_is_in_the_environment_only_if_set() -> None:
    """Pod templates of jobs that are older than the field stay as they are."""

    def given(**spec: Any) -> Any:
        return {one["name"]: one.get("value") for one in pod_spec(**spec)["containers"][0]["env"]}.get(
            "DTJ_STOP_GRACE_SECONDS"
        )

    assert given() is None
    assert given(restart={"stopGraceSeconds": 30}) == "30.0"


def test_restart_rules_reach_the_agent_through_the_kubelets_expansion() -> None:
    rules = [
        {"logPattern": 'cost "$(HOME)" $$ é', "action": "Fail"},
        {"exitCodes": [7], "signals": ["SIGBUS"], "action": "RestartFree"},
    ]
    given = {one["name"]: one.get("value") for one in pod_spec(restart={"rules": rules})["containers"][0]["env"]}
    assert "$" not in given["DTJ_RESTART_RULES"], "the kubelet expands $(NAME), and makes $ of $$"
    assert json.loads(given["DTJ_RESTART_RULES"]) == rules
    assert "DTJ_RESTART_RULES" not in {one["name"] for one in pod_spec()["containers"][0]["env"]}


def test_hang_detection_is_in_the_environment_only_if_set() -> None:
    def given(**spec: Any) -> Any:
        named = {one["name"]: one.get("value") for one in pod_spec(**spec)["containers"][0]["env"]}
        return [named.get("DTJ_" + name) for name in ("HANG_POLICY", "HANG_MIN_SECONDS", "PROGRESS_DEADLINE_SECONDS")]

    assert given() == [None, None, None]
    hangs = {"policy": "Report", "minSeconds": 60}
    assert given(hangDetection=hangs, progressDeadlineSeconds=900) == ["Report", "60", "900"]


def test_success_policy_is_in_the_environment_only_if_set() -> None:
    def given(**spec: Any) -> Any:
        return {one["name"]: one.get("value") for one in pod_spec(**spec)["containers"][0]["env"]}.get(
            "DTJ_SUCCESS_POLICY"
        )

    assert (given(), given(successPolicy="AllRanks"), given(successPolicy="Rank0")) == (None, None, "Rank0")


def test_engine_is_in_the_environment_only_if_it_is_not_torch() -> None:
    def given(**spec: Any) -> Any:
        return {one["name"]: one.get("value") for one in pod_spec(**spec)["containers"][0]["env"]}.get("DTJ_ENGINE")

    assert (given(), given(engine="torch"), given(engine="jax")) == (None, None, "jax")
    trainer = {"name": "trainer", "command": ["horovodrun", "-np", "6", "python3", "train.py"]}
    by_launcher = {"entrypoint": None, **template({"containers": [trainer]})}
    assert given(**by_launcher) == "horovod"
    assert given(**by_launcher, engine="tensorflow") == "tensorflow", "Horovod's scripts of TensorFlow may need it"


def test_pod_meets_the_restricted_standard_by_default() -> None:
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


def test_users_security_settings_are_kept() -> None:
    spec = pod_spec(
        **template(
            {
                "securityContext": {"runAsUser": 0, "fsGroup": 7},
                "automountServiceAccountToken": True,
                "hostNetwork": True,
            },
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


def test_run_as_non_root_alone_keeps_the_user_of_the_image() -> None:
    assert "runAsUser" not in pod_spec(**template({"securityContext": {"runAsNonRoot": True}}))["securityContext"]


def test_privileged_container_gets_no_contradicting_default() -> None:
    assert (
        "allowPrivilegeEscalation" not in trainer(**template(securityContext={"privileged": True}))["securityContext"]
    )


def test_every_field_of_the_users_template_is_kept() -> None:
    written: dict[str, Any] = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}, "future": 1},
        "spec": {
            "containers": [
                {
                    "name": "pytorch",
                    "env": [{"name": "A", "value": "1"}],
                    "resources": {"limits": {"cpu": 1}},
                    "future": [None],
                },
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


def test_planning_leaves_the_jobs_template_unchanged() -> None:
    written = template({"securityContext": {}}, env=[], volumeMounts=[])
    body = job(**written)
    plan(body, Observed(), NOW, SETTINGS)
    assert body["spec"]["template"] == template({"securityContext": {}}, env=[], volumeMounts=[])["template"]


def test_users_own_tmp_or_shm_replaces_the_default_volume() -> None:
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
def test_checkpoint_volume_is_mounted(volume: Any, source: Any) -> None:
    spec = pod_spec(checkpoint={"volume": volume})
    assert {"name": "dtj-checkpoint", **source} in spec["volumes"]
    assert {"name": "dtj-checkpoint", "mountPath": "/checkpoints"} in spec["containers"][0]["volumeMounts"]


def test_job_without_checkpoints_has_no_volume_and_no_environment_for_them() -> None:
    assert "dtj-checkpoint" not in str(pod_spec())
    assert not [name for name in env() if name.startswith("DTJ_CHECKPOINT")]


def test_every_added_mount_has_a_volume_and_every_volume_a_mount() -> None:
    spec = pod_spec(checkpoint={"volume": {"claimName": "c"}})
    volumes = [volume["name"] for volume in spec["volumes"]]
    mounted = [mount["name"] for mount in spec["containers"][0]["volumeMounts"]]
    assert sorted(volumes) == sorted(mounted)


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
def test_pods_of_a_silent_node_are_evicted_after_30_s_by_default(given: Any, seconds: Any) -> None:
    assert [t.get("tolerationSeconds") for t in pod_spec(**template({"tolerations": given}))["tolerations"]] == seconds


def test_pod_on_the_host_network_resolves_the_names_of_its_peers() -> None:
    assert pod_spec(**template({"hostNetwork": True}))["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod_spec(**template({"hostNetwork": True, "dnsPolicy": "None"}))["dnsPolicy"] == "None"
    assert "dnsPolicy" not in pod_spec(**template())
