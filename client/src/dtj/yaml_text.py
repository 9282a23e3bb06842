"""Writes YAML that kubectl reads back as it is meant."""

from __future__ import annotations

import re

import yaml

from dtj_core.plan.model import Object

# Texts that PyYAML writes without quotes, and that kubectl reads as a number or a boolean: 1e-4, 0o17, y.
NOT_TEXT = re.compile(r"[-+.]{0,2}[0-9][0-9a-fA-FxXoO_.+-]*|[yYnN]")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, texts that look like numbers in quotes, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else "'" if NOT_TEXT.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(value: Object) -> str:
    """Returns an object as a YAML document, with its fields in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
