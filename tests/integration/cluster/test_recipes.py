"""The pure parts of hack/cluster: cache entries, the capability wrapper, files for kind, Go and the pod network."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from hack.cluster import cache, gobuild, kind, network, nodeparts, policies, runc_wrapper, toolchain
from hack.cluster.shell import ProvisionError, run, wait_for
from hack.cluster.versions import GO_TOOLCHAIN, PARTNERS, TOOLS, Tool


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DTJ_CACHE_DIR", str(folder))
    return folder


def test_equal_recipes_have_equal_keys() -> None:
    assert cache.key({"a": 1, "b": (2, "x")}) == cache.key({"b": [2, "x"], "a": 1})
    assert cache.key("v1") != cache.key("v2")


def test_cache_entry_is_built_once() -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("content")

    first, second = cache.entry("kind", "name", build), cache.entry("kind", "name", build)
    assert first == second
    assert (first / "file").read_text() == "content"
    assert len(built) == 1


def test_failed_build_leaves_no_cache_entry(own_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        raise ProvisionError("broken")

    with pytest.raises(ProvisionError, match="broken"):
        cache.entry("kind", "name", build)
    assert not (own_cache / "kind/name").exists()
    assert list((own_cache / "tmp").iterdir()) == []
    assert cache.entry("kind", "name", lambda folder: (folder / "whole").touch()).is_dir()


def test_cache_lock_of_another_run_times_out() -> None:
    with cache.lock("busy"), pytest.raises(ProvisionError, match="another run"), cache.lock("busy", timeout=0.3):
        pass


STATUS = "Name:\tsh\nCapBnd:\t000001fffeffffff\n"


def test_runc_wrapper_finds_the_capabilities_that_the_bounding_set_lacks() -> None:
    assert runc_wrapper.missing(STATUS) == {"CAP_SYS_RESOURCE"}
    assert runc_wrapper.missing("CapBnd:\t000001ffffffffff\n") == set()
    assert runc_wrapper.missing("nothing of the kind") == set()


def test_runc_wrapper_removes_a_missing_capability_from_a_bundle(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    sets = {name: ["CAP_CHOWN", "CAP_SYS_RESOURCE"] for name in ("bounding", "effective", "permitted")}
    config.write_text(json.dumps({"process": {"args": ["sh"], "capabilities": sets}, "root": {"path": "rootfs"}}))
    runc_wrapper.edit(str(config), {"CAP_SYS_RESOURCE"})
    edited = json.loads(config.read_text())
    assert edited["process"]["capabilities"] == {name: ["CAP_CHOWN"] for name in sets}
    assert edited["root"] == {"path": "rootfs"}


def test_runc_wrapper_removes_a_missing_capability_from_an_exec_process(tmp_path: Path) -> None:
    process = tmp_path / "process.json"
    process.write_text(
        json.dumps({"args": ["sh"], "capabilities": {"bounding": ["CAP_SYS_RESOURCE"], "ambient": None}})
    )
    runc_wrapper.edit(str(process), {"CAP_SYS_RESOURCE"})
    assert json.loads(process.read_text())["capabilities"] == {"bounding": [], "ambient": None}


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["--root", "/run/runc", "create", "--bundle", "/b", "--pid-file", "/p", "id"], "/b/config.json"),
        (["create", "--bundle=/b", "id"], "/b/config.json"),
        (["exec", "--process", "/tmp/p.json", "--detach", "id"], "/tmp/p.json"),
        (["exec", "-p", "/tmp/p.json", "id"], "/tmp/p.json"),
        (["kill", "id", "9"], None),
        (["--version"], None),
    ],
)
def test_runc_wrapper_finds_the_specification_of_a_call(arguments: list[str], file: str | None) -> None:
    assert runc_wrapper.specification(arguments) == file


def test_go_mod_replaces_staging_modules_and_no_others() -> None:
    required = "require (\n\tk8s.io/api v0.0.0\n\tk8s.io/utils v0.0.0-20260101000000-abc\n)\n"
    theirs = f"module k8s.io/kubernetes\n\ngo 1.26.0\n\n{required}"
    made = gobuild.go_mod(TOOLS["kubectl"], theirs)
    assert "go 1.26.0\n" in made
    assert f"replace k8s.io/api => k8s.io/api {TOOLS['kubectl'].staging}\n" in made
    assert "k8s.io/utils" not in made


def test_go_mod_of_a_program_on_kubernetes_repeats_its_replacements() -> None:
    same, other = "k8s.io/api => k8s.io/api v0.34.7", "k8s.io/legacy => k8s.io/legacy v0.31.8"
    theirs = f"module m\n\ngo 1.24.0\n\nreplace (\n\t{same}\n\t{other}\n)\n\nreplace {same.replace('api', 'kms')}\n"
    tool = Tool("t", "m", "v0.34.7", ".", staging="v0.34.7", pins=(("k8s.io/kms", "v0.34.4"), ("a.io/b", "v1.0.0")))
    replaced = [line for line in gobuild.go_mod(tool, theirs).splitlines() if line.startswith("replace ")]
    assert replaced == [
        f"replace {same}",
        "replace k8s.io/kms => k8s.io/kms v0.34.4",
        "replace a.io/b => a.io/b v1.0.0",
    ]


def test_go_mod_of_our_own_program_requires_no_module() -> None:
    assert "require" not in gobuild.go_mod(Tool("pause", "", "v1", "."), "")


def test_go_mod_requires_later_versions_where_a_tool_names_them() -> None:
    made = gobuild.go_mod(PARTNERS["kube-router"], "go 1.21\n")
    assert [line.split()[1] for line in made.splitlines() if line.startswith("require")] == [
        "github.com/cloudnativelabs/kube-router/v2",
        "k8s.io/client-go",
    ]


def test_go_mod_names_the_new_path_of_a_module_that_has_moved() -> None:
    tool = Tool("t", "m", "v1.0.0", ".", moved=(("a.io/b", "c.io/b", "v1.2.0"),))
    assert gobuild.go_mod(tool, "go 1.24\n").splitlines()[-1] == "replace a.io/b => c.io/b v1.2.0"


def test_firewall_of_the_nodes_only_reads_the_api() -> None:
    [role] = [each for each in policies.objects("image:1") if each["kind"] == "ClusterRole"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_go_toolchain_is_pinned_for_both_architectures() -> None:
    assert {machine for version, machine in toolchain.WHEELS if version == GO_TOOLCHAIN} == {"x86_64", "aarch64"}


def test_kind_configuration_replaces_the_network_only_when_built_from_source() -> None:
    plain, built = kind.configuration(from_source=False), kind.configuration(from_source=True)
    assert [node["role"] for node in built["nodes"]] == ["control-plane", "worker", "worker"]
    mounts = [node["extraMounts"][0] for node in built["nodes"]]
    assert mounts[1] == mounts[2]
    assert mounts[1]["containerPath"] == kind.SHARED
    # Plain kind keeps its own network.
    assert "networking" not in plain
    assert built["networking"]["disableDefaultCNI"] is True


def test_conflist_has_the_address_range_of_its_node() -> None:
    plugins = network.conflist("10.244.1.0/24")["plugins"]
    assert isinstance(plugins, list)
    assert plugins[0]["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]


def test_image_archives_are_rewritten_to_the_form_that_kind_reads(tmp_path: Path) -> None:
    saved, target = tmp_path / "saved.tar", tmp_path / "out.tar"
    manifest = [{"Config": "c.json", "RepoTags": ["kindest/x:1"], "Layers": []}]
    contents = {"index.json": "{}", "c.json": "{}", "manifest.json": json.dumps(manifest)}
    with tarfile.open(saved, "w") as archive:
        for name, text in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    nodeparts.rewrite(saved, target, ["docker.io/kindest/x:1"])
    with tarfile.open(target) as archive:
        assert archive.getnames() == ["repositories", "manifest.json", "c.json"]
        tags = json.load(archive.extractfile("manifest.json") or io.BytesIO())[0]["RepoTags"]
    assert tags == ["docker.io/kindest/x:1"]


def test_command_that_hangs_times_out() -> None:
    with pytest.raises(ProvisionError, match="timed out after"):
        run(["sleep", "60"], timeout=0.2)


def test_error_of_a_failed_command_has_its_output() -> None:
    with pytest.raises(ProvisionError, match=r"(?s)exit code 3.*so it is"):
        run(["sh", "-c", "echo so it is >&2; exit 3"], timeout=5)


def test_wait_for_a_condition_that_never_holds_times_out() -> None:
    with pytest.raises(ProvisionError, match="waiting for spring"):
        wait_for("spring", lambda: False, timeout=0.1, every=0.02)
