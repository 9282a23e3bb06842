"""The chart's README: a table of all values, from values.yaml and its comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):(?P<rest>.*)$")
_HEAD = """# dtj-operator

The Helm chart of the operator for `DistributedTrainingJob`.

```
helm upgrade --install dtj charts/dtj-operator -n dtj-system --create-namespace
helm test dtj -n dtj-system
```

`helm test` runs a job of two pods to `Complete`.
[The runbook](../../docs/runbook.md#alerts) explains each alert.
[Security](../../docs/security.md) states what the chart's rights are worth.
An unknown value is rejected, with its name.

## Values

This table is generated from `values.yaml` (`make generate`).

| value | default | meaning |
|---|---|---|
"""


def render(values: Path) -> str:
    """Returns the page."""
    rows = (f"| `{path}` | {default} | {text} |" for path, default, text in _rows(values.read_text("utf-8")))
    return _HEAD + "\n".join(rows) + "\n"


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields path, default and comment of every value that has no commented value below it."""
    defaults = yaml.safe_load(text)
    comment: list[str] = []
    parents: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
            continue
        found = _KEY.match(line)
        if found is None:
            comment = []
            continue
        parents = [*parents[: len(found["indent"]) // 2], found["key"]]
        value, _, trailing = found["rest"].partition(" #")
        meaning = " ".join([*comment, trailing.strip()]).strip().replace("|", "\\|")
        comment = []
        default = defaults
        for key in parents:
            default = default[key]
        has_children = not value.strip() and isinstance(default, dict)
        if not has_children:
            yield ".".join(parents), f"`{json.dumps(default)}`", meaning
        elif meaning:
            yield ".".join(parents), "", meaning
