"""Any text in the body of an apply survives libyaml, of which the API server's YAML decoder is a
port.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dtj_core.api.encoding import apply_body
from tests.unit.api.texts import ANY_TEXT, as_stored

text = st.text(st.characters(exclude_categories=()) | st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF))


def decoded(body: bytes) -> Any:
    return yaml.load(body, Loader=yaml.CSafeLoader)  # the C twin of SafeLoader


@given(text)
@example("\ud83e\udd17")
@example("\udd17\ud83e")
@example("\\ud83e\\udd17")
@example("\\\U0001f917\\")
def test_any_text_survives_encoding(text: str) -> None:
    assert decoded(apply_body([text, {"a": text}])) == [as_stored(text), {"a": as_stored(text)}]
    # Escaped YAML keys end at 1024 bytes.
    if len(text) < 200:
        assert decoded(apply_body({text: 1})) == {as_stored(text): 1}


@given(text)
def test_body_without_astral_characters_is_json(text: str) -> None:
    plain = "".join(c for c in text if ord(c) < 0xD800 or 0xDFFF < ord(c) < 0x10000)
    assert json.loads(apply_body({"a": plain, "b": [1, 1.5, None, True]})) == {"a": plain, "b": [1, 1.5, None, True]}


@pytest.mark.parametrize("name", ANY_TEXT)
def test_body_is_ascii(name: str) -> None:
    assert apply_body(ANY_TEXT[name]).isascii()


def test_yaml_rejects_escapes_of_json() -> None:
    """apply_body exists for this reason.

    A failure here means that these tests use another kind of decoder.
    """
    with pytest.raises(yaml.YAMLError, match="invalid Unicode character escape code"):
        decoded(json.dumps("\U0001f917").encode())
