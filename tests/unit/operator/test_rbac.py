"""The table of RBAC rules."""

from __future__ import annotations

from dtj_operator import rbac


def test_rbac_never_reads_secrets_and_uses_no_wildcard_verb() -> None:
    verbs = rbac.RULES["", "secrets"]
    assert not {"get", "list", "watch"} & set(verbs)
    assert not any("*" in each for each in rbac.RULES.values())
    assert not any("leases" in resource for _, resource in rbac.RULES), "only in the operator's own namespace"
    assert not any("finalizers" in resource for _, resource in rbac.RULES)
