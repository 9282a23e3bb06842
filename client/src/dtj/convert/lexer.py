"""Splits shell text into tokens and operators. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

LITERAL_DOLLAR = "\0"  # a `$` that the shell would not expand
NAME = r"[A-Za-z_]\w*"
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_OPERATORS = ("&&", "||", ";;", "|", ";", "&", "(", ")", "\n")


@dataclass(frozen=True)
class Token:
    """A token before expansion, with LITERAL_DOLLAR for every `$` that stays."""

    text: str
    quoted: bool = False
    array: bool = False
    """Whether the text has the elements of `NAME=(…)`, which are separate arguments where it is used."""
    redirects: bool = False
    """Whether the token begins with an unquoted `<` or `>`, perhaps behind a number."""


def lexemes(text: str) -> Iterator[tuple[Token | str, int]]:
    """Yields tokens and operators, each with its line. Raises ValueError where a quotation has no end."""
    return ((item, line) for item, line, _ in _scan(text, 0))


def _scan(text: str, place: int) -> Iterator[tuple[Token | str, int, int]]:
    """Yields tokens and operators from `place` on, each with its line and the place after it."""
    line = 1
    ends: list[str] = []  # of the here-documents that begin on the next line
    before: Token | None = None
    while place < len(text):
        char = text[place]
        if text.startswith("\\\n", place):
            place, line = place + 2, line + 1
        elif char == "#":
            place = _end_of_line(text, place)
        elif char in " \t\r":
            place += 1
        elif not text.startswith("&>", place) and (
            sign := next((one for one in _OPERATORS if text.startswith(one, place)), None)
        ):
            yield sign, line, place + len(sign)
            place += len(sign)
            after = _behind_documents(text, place, ends) if sign == "\n" else place
            line += (sign == "\n") + text.count("\n", place, after)
            place = after
        else:
            token, after = _token(text, place, line)
            if before and before.redirects and before.text in ("<<", "<<-"):
                ends.append(token.text)
            elif token.redirects and (match := re.fullmatch(r"<<-?([^<].*)", token.text)) and token.text != "<<-":
                ends.append(match[1])
            yield token, line, after
            line += text.count("\n", place, after)
            place, before = after, token


def _behind_documents(text: str, place: int, ends: list[str]) -> int:
    """Returns the place after the here-documents that begin at `place`, and empties the list of their last lines.

    A document without its last line is none: `1 << 3` looks like its beginning.
    """
    while ends:
        if found := re.compile(rf"(?:.*\n)*?\t*{re.escape(ends.pop(0))}(?:\n|$)").match(text, place):
            place = found.end()
    return place


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _token(text: str, place: int, line: int) -> tuple[Token, int]:
    """Returns the token that begins at `place`, and the place after it."""
    parts: list[str] = []
    quoted = array = False
    begin = place
    while place < len(text) and text[place] not in " \t\r\n;|)":
        char = text[place]
        if char == "&" and text[place - 1 : place] not in (">", "<") and text[place + 1 : place + 2] != ">":
            break
        if char in "<>" and parts and re.fullmatch(r"[\d&]*[<>&]*", "".join(parts)) is None:
            break
        if char == "(" and (place == begin or not parts or not parts[-1].endswith("=")):
            break
        if char == "\\":
            escaped = text[place + 1 : place + 2]
            parts.append({"\n": "", "$": LITERAL_DOLLAR}.get(escaped, escaped))
            place += 2
        elif char in "'\"" or text.startswith(("$'", '$"'), place):
            inside, place = _quotation(text, place, line)
            parts.append(inside)
            quoted = True
        elif char in "$`(":
            end = _closing(text, place)
            inside = text[place:end]
            parts.append(_array(inside) if char == "(" else inside)
            array = array or char == "("
            place = end
        else:
            parts.append(char)
            place += 1
    if re.match(r"~(?:/|$)", "".join(parts)) and text[begin] == "~":
        parts[0] = "$HOME"
    if place == begin:  # a parenthesis with nothing in front
        return Token(text[place]), place + 1
    return Token("".join(parts), quoted or array, array, re.match(r"[\d&]*[<>]", text[begin:place]) is not None), place


def _array(text: str) -> str:
    """Returns the elements of `(a "b c")` as one text that splits into the same elements."""
    elements = [item for item, _ in lexemes(text[1:-1]) if isinstance(item, Token)]
    return " ".join(shlex.quote(one.text) if _is_whole(one) else one.text for one in elements)


def _is_whole(token: Token) -> bool:
    """Returns whether an element stays one argument: a quotation without a variable in front, or a command's output."""
    return "$(" in token.text or "`" in token.text or (token.quoted and not token.text.startswith("$"))


def _quotation(text: str, place: int, line: int) -> tuple[str, int]:
    """Returns the inside of the quotation that begins at `place`, and the place after it.

    `$'…'` has the escapes of C; `$"…"` is translated, to itself if nobody has translated it.
    """
    if text.startswith("$'", place):
        if not (match := _ANSI_C.match(text, place)):
            raise ValueError(f"line {line}: the quotation $' has no end")
        inside = _ESCAPE.sub(_escaped, match[1]).replace("\0", "")  # which a shell can't hold
        return inside.replace("$", LITERAL_DOLLAR), match.end()
    place += text[place] == "$"
    mark = text[place]
    parts: list[str] = []
    at = place + 1
    while at < len(text) and text[at] != mark:
        char = text[at]
        if mark == "'":
            parts.append(LITERAL_DOLLAR if char == "$" else char)
        elif char == "\\" and text[at + 1 : at + 2] in ("$", '"', "\\", "`", "\n"):
            at += 1
            parts.append({"\n": "", "$": LITERAL_DOLLAR}.get(text[at], text[at]))
        elif text.startswith("$(", at):
            end = _closing(text, at)
            parts.append(text[at:end])
            at = end
            continue
        else:
            parts.append(char)
        at += 1
    if at >= len(text):
        raise ValueError(f"line {line}: the quotation {mark} has no end")
    return "".join(parts), at + 1


def _escaped(match: re.Match[str]) -> str:
    """Returns the character of an escape in `$'…'`; a backslash in front of any other letter stays."""
    hexadecimal, octal, letter = match.groups()
    if letter is None:
        return chr(int(hexadecimal or octal, 16 if hexadecimal else 8))
    return letter if letter in "'\"\\?" else _ESCAPED.get(letter, f"\\{letter}")


def _closing(text: str, place: int) -> int:
    """Returns the place after `$(…)`, `${…}`, `` `…` ``, `(…)`, or `$NAME`."""
    if text[place] == "`":
        end = text.find("`", place + 1)
        return len(text) if end < 0 else end + 1
    opening = place if text[place] == "(" else place + 1
    pair = {"(": ")", "{": "}"}.get(text[opening : opening + 1])
    if pair is None:
        match = re.compile(rf"\$(?:{NAME}|.)?", re.DOTALL).match(text, place)
        return match.end() if match else place + 1
    if pair == ")" and (behind := _behind_commands(text, opening)):
        return behind
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == text[opening]) - (text[at] == pair)
        if depth == 0:
            return at + 1
    return len(text)


def _behind_commands(text: str, place: int) -> int | None:
    """Returns the place after `(…)`, whose quotations may hold brackets; None if it can't be read as commands."""
    depth = 0
    try:
        for item, _, after in _scan(text, place):
            depth += (item == "(") - (item == ")")
            if depth == 0:
                return after
    except (ValueError, RecursionError):  # no end of a quotation, or brackets in hundreds of others
        pass
    return None
