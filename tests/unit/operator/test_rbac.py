"""The table of RBAC rules."""

from __future__ import annotations

from dtj_operator import rbac


def test_rbac_never_reads_secrets_and_uses_no_wildcard_verb() -> None:
    verbs = rbac.RULES["", "secrets"]
    assert not {"get", "list", "watch"} & set(verbs)
    assert not any("*" in each for each in rbac.RULES.values())
    assert not any("leases" in resource for _, resource in rbac.RULES), "only in the operator's own namespace"
    assert not any("finalizers" in resource for _, resource in rbac.RULES)


def test_nodes_are_only_read() -> None:
    tables = (value for name, value in vars(rbac).items() if name.endswith("RULES"))
    granted = {
        verb for table in tables for (_, resource), verbs in table.items() if "nodes" in resource for verb in verbs
    }
    assert granted == {"list", "watch"}
