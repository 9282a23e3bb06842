"""Every pinned version of the cluster. Changing one rebuilds only what depends on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

OLDEST_KUBERNETES = "1.30.14"
"""The oldest version that is tested: `make test-long` runs the control-plane tests on it."""
# Programs of another version are cache entries of their own, so both versions stay built.
KUBERNETES = os.environ.get("K8S_VERSION") or "1.36.3"
CONTAINERD = "2.3.4"
COREDNS = "1.14.7"
KIND = "0.33.0"
DEBIAN = "bookworm"
KUEUE = "0.17.0"
KUBE_ROUTER = "2.1.0"
SCHEDULER_PLUGINS = "0.34.7"
# The newest release whose module path a Go proxy accepts. Later ones come from Terraform's registry alone.
TERRAFORM_HELM = "1.3.2"
# The toolchain to download where `go` on PATH is missing or older than Kubernetes requires.
GO_MINIMUM = (1, 26)
GO_TOOLCHAIN = "1.26.6"


@dataclass(frozen=True)
class Tool:
    """One Go program: its module (empty if all of it is ours), and the package to build in the module."""

    name: str
    module: str
    version: str
    package: str
    # These exclude drivers that need C headers, which are never used here.
    tags: tuple[str, ...] = ()
    # Linker stamps: kubeadm, kubectl and clients misjudge a binary that doesn't know its own version.
    stamps: tuple[tuple[str, str], ...] = ()
    # Our own main package, where `go build` can't reach the module's, for example behind `replace` lines.
    main: str = ""
    # Version of the modules that Kubernetes keeps in its own repository, which it requires at v0.0.0.
    staging: str = ""
    # Modules at later versions than the module requires.
    requires: tuple[tuple[str, str], ...] = ()
    # Other versions than the required ones, of modules whose required version a module proxy lacks.
    pins: tuple[tuple[str, str], ...] = ()
    # Modules whose path a module proxy lacks, the path that they have today, and their version there.
    moved: tuple[tuple[str, str, str], ...] = ()


def _kubernetes(name: str) -> Tool:
    major, minor, _ = KUBERNETES.split(".")
    version = "k8s.io/component-base/version"
    client = "k8s.io/client-go/pkg/version"
    stamps = [
        (f"{package}.{field}", value)
        for package in (version, client)
        for field, value in (
            ("gitVersion", f"v{KUBERNETES}"),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        )
    ]
    return Tool(
        name,
        "k8s.io/kubernetes",
        f"v{KUBERNETES}",
        f"k8s.io/kubernetes/cmd/{name}",
        # Up to 1.30 they have the clients of four clouds, which take longer to compile than all the rest.
        tags=("providerless",) if int(minor) <= 30 else (),
        stamps=tuple(stamps),
        staging="v0." + KUBERNETES.split(".", 1)[1],
    )


def _containerd(name: str) -> Tool:
    module = "github.com/containerd/containerd/v2"
    return Tool(
        name,
        module,
        f"v{CONTAINERD}",
        f"{module}/cmd/{name}",
        tags=("no_btrfs", "no_devmapper", "no_zfs", "no_aufs"),
        stamps=((f"{module}/version.Version", f"v{CONTAINERD}"),),
    )


def _cni(name: str, folder: str) -> Tool:
    module = "github.com/containernetworking/plugins"
    return Tool(name, module, "v1.9.1", f"{module}/plugins/{folder}/{name}")


def _prometheus(name: str) -> Tool:
    module = "github.com/prometheus/prometheus"
    # No service discovery: the clients of all clouds are most of what would be compiled.
    return Tool(name, module, "v0.316.0", f"{module}/cmd/{name}", tags=("remove_all_sd",))


_PROGRAMS = Path(__file__).parent / "programs"

_ETCD_MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""

# Holds a pod's namespaces: sleeps, and reaps the orphans of a shared process namespace.
_PAUSE_MAIN = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for caught := range signals {
		if caught != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
"""

# The plugins of kubeadm's Corefile. All others, with the clients of four clouds, are half of what would be compiled.
_COREDNS_MAIN = """package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() { coremain.Run() }
"""

# Its storage is a folder, so the drivers of three clouds are left out: half of what would be compiled.
_REGISTRY_MAIN = """package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if registry.RootCmd.Execute() != nil {
		os.Exit(1)
	}
}
"""

_HELM = "helm.sh/helm/v3/internal/version"

# In the order of use: the control plane comes first.
TOOLS = {
    tool.name: tool
    for tool in (
        Tool("etcd", "go.etcd.io/etcd/server/v3", "v3.6.8", ".", main=_ETCD_MAIN),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kubectl"),
        Tool(
            "helm", "helm.sh/helm/v3", "v3.21.4", "helm.sh/helm/v3/cmd/helm", stamps=((f"{_HELM}.version", "v3.21.4"),)
        ),
        # Checks the chart's alerts.
        _prometheus("promtool"),
        Tool("registry", "github.com/distribution/distribution/v3", "v3.1.2", ".", main=_REGISTRY_MAIN),
        Tool("kind", "sigs.k8s.io/kind", f"v{KIND}", "sigs.k8s.io/kind"),
        _kubernetes("kubelet"),
        _kubernetes("kubeadm"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kube-proxy"),
        _containerd("containerd"),
        _containerd("containerd-shim-runc-v2"),
        _containerd("ctr"),
        _cni("host-local", "ipam"),
        _cni("loopback", "main"),
        _cni("ptp", "main"),
        _cni("portmap", "meta"),
        Tool("crictl", "sigs.k8s.io/cri-tools", "v1.36.0", "sigs.k8s.io/cri-tools/cmd/crictl"),
        Tool("coredns", "github.com/coredns/coredns", f"v{COREDNS}", ".", main=_COREDNS_MAIN),
        Tool(
            "local-path-provisioner",
            "github.com/rancher/local-path-provisioner",
            "v0.0.30",
            "github.com/rancher/local-path-provisioner",
        ),
        # The interpreter that Argo CD runs health rules with.
        Tool("glua", "github.com/yuin/gopher-lua", "v1.1.1", "github.com/yuin/gopher-lua/cmd/glua"),
        Tool("pause", "", "v1", ".", main=_PAUSE_MAIN),
    )
}

# Other projects' programs, for tests beside our operator. No part of the cluster depends on them.
PARTNERS = {
    tool.name: tool
    for tool in (
        Tool("kueue", "sigs.k8s.io/kueue", f"v{KUEUE}", ".", main=(_PROGRAMS / "kueue.go").read_text()),
        Tool(
            "kube-router",
            "github.com/cloudnativelabs/kube-router/v2",
            f"v{KUBE_ROUTER}",
            ".",
            main=(_PROGRAMS / "kube_router.go").read_text(),
            # Its own client is of Kubernetes 1.29.
            requires=(("k8s.io/client-go", "v0.36.3"),),
        ),
        Tool(
            "coscheduling",
            "sigs.k8s.io/scheduler-plugins",
            f"v{SCHEDULER_PLUGINS}",
            ".",
            main=(_PROGRAMS / "coscheduling.go").read_text(),
            # Its version numbers are those of the Kubernetes whose scheduler it extends.
            staging=f"v{SCHEDULER_PLUGINS}",
            pins=(("k8s.io/csi-translation-lib", "v0.34.4"),),
        ),
        Tool("kstatus", "sigs.k8s.io/cli-utils", "v0.37.2", ".", main=(_PROGRAMS / "kstatus.go").read_text()),
        # Checks terraform/ where Terraform's registry can't be reached.
        Tool(
            "terraform-provider-helm",
            "github.com/hashicorp/terraform-provider-helm",
            f"v{TERRAFORM_HELM}",
            "github.com/hashicorp/terraform-provider-helm",
            moved=(
                ("vbom.ml/util", "github.com/fvbommel/util", "v0.0.0-20180919145318-efcd4e0f9787"),
                # The provider's own replacement, which holds for the main module alone.
                ("github.com/Azure/go-autorest", "github.com/Azure/go-autorest", "v13.3.3+incompatible"),
            ),
        ),
        # Scrapes our endpoints and answers the dashboard's queries. The API is enough, so it has no web page.
        _prometheus("prometheus"),
    )
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
CLIENTS = ("kubectl", "helm", "kind")
CNI_PLUGINS = ("host-local", "loopback", "ptp", "portmap")
