"""Any text in the body of an apply, read as the API server reads it: by libyaml, of which Go's YAML decoder is a port."""

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
def test_any_text_is_read_as_it_was_written(text: str) -> None:
    assert decoded(apply_body([text, {"a": text}])) == [as_stored(text), {"a": as_stored(text)}]
    if len(text) < 200:  # a YAML key ends at 1024 bytes of its escaped form
        assert decoded(apply_body({text: 1})) == {as_stored(text): 1}


@given(text)
def test_without_characters_beyond_the_bmp_the_body_is_json(text: str) -> None:
    plain = "".join(c for c in text if ord(c) < 0xD800 or 0xDFFF < ord(c) < 0x10000)
    assert json.loads(apply_body({"a": plain, "b": [1, 1.5, None, True]})) == {"a": plain, "b": [1, 1.5, None, True]}


@pytest.mark.parametrize("name", ANY_TEXT)
def test_the_bodys_bytes_are_ascii(name: str) -> None:
    assert apply_body(ANY_TEXT[name]).isascii()


def test_yaml_refuses_the_escapes_of_json() -> None:
    """The reason for all this: red here means that the decoder of these tests is none."""
    with pytest.raises(yaml.YAMLError, match="invalid Unicode character escape code"):
        decoded(json.dumps("\U0001f917").encode())
