"""`spec.network`: the network that the ranks use."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from dtj_core.api.base_model import Model, Rule

_INTERFACES = r"^[A-Za-z0-9_.:-]+(,[A-Za-z0-9_.:-]+)*$"
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Network(Model):
    """Network that the ranks use, for nodes with several interfaces or with RDMA."""

    host_network: bool | None = None
    """Whether the pods use the node's network, as RDMA without a network plug-in requires. Two pods
    of jobs with it never share a node, because the agent's port is taken once on each. Short for
    template.spec.hostNetwork. Default: false."""
    interface: Annotated[str, StringConstraints(max_length=256, pattern=_INTERFACES)] | None = None
    """Interfaces of the ranks, such as `eth0` or `ib0,ib1`: the value of NCCL_SOCKET_IFNAME and
    GLOO_SOCKET_IFNAME. Default: chosen by the library."""
    dns_policy: Literal["ClusterFirst", "ClusterFirstWithHostNet", "None"] | None = None
    """DNS policy of the pods; the agents must resolve names of the cluster. None: needs dnsConfig in
    template.spec. Short for template.spec.dnsPolicy. Default: ClusterFirstWithHostNet with
    hostNetwork, else ClusterFirst."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.hostNetwork) || has(self.interface) || has(self.dnsPolicy)",
            message="set at least one of hostNetwork, interface and dnsPolicy, or remove network",
            holds=lambda self: bool(self.model_fields_set),
        ),
    )
