"""Reads shell text: simple commands, and the values that can be known without running them. Pure.

No shell is written here: text that needs one (a loop, a pipe, a command substitution) is recognised and
left to the caller.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

LITERAL_DOLLAR = "\0"  # a `$` that the shell would not expand
KEYWORDS = frozenset({"if", "for", "while", "until", "case", "function", "select", "{", "("})
ENDS = frozenset({"fi", "done", "esac", "}", ")"})
INSIDE = frozenset({"then", "do", "else", "elif"})
_OPERATORS = ("&&", "||", ";;", "|", ";", "&", "(", ")", "\n")
_NAME = r"[A-Za-z_]\w*"
ASSIGNMENT = re.compile(rf"({_NAME})(?:\[\w*\])?\+?=(.*)", re.DOTALL)
_REFERENCE = re.compile(
    rf"\$(?:\(\((?P<sum>[^()]*)\)\)|\((?P<kubelet>[A-Z_][A-Z0-9_]*)\)|{{(?P<braced>{_NAME}|[0-9]+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}}]*))?}}"
    rf"|(?P<bare>{_NAME}|[@*0-9]))"
)
_DEFAULT = re.compile(rf"\$\{{({_NAME}):?=(.*)\}}", re.DOTALL)
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}

Values = Mapping[str, str]


@dataclass(frozen=True)
class Token:
    """A token before expansion, with LITERAL_DOLLAR for every `$` that stays."""

    text: str
    quoted: bool = False
    array: bool = False
    """Whether the text has the elements of `NAME=(…)`, which are separate arguments where it is used."""
    redirects: bool = False
    """Whether the token begins with an unquoted `<` or `>`, perhaps behind a number."""


@dataclass(frozen=True)
class Command:
    """A simple command: its tokens, the first of its lines, and how many loops or conditions are around it."""

    tokens: tuple[Token, ...]
    line: int
    depth: int
    piped: bool = False
    """Whether the command is a part of a pipe, or runs in the background."""
    redirected: str = ""
    """The redirections of the command, which are not among its tokens."""

    @property
    def text(self) -> str:
        """The command as a person would recognise it, with single spaces."""
        return " ".join(token.text for token in self.tokens).replace(LITERAL_DOLLAR, "$")


def commands(text: str) -> list[Command]:
    """Returns the simple commands of a script, without comments and redirections.

    Raises ValueError, which names the line, where a quotation has no end.
    """
    found: list[Command] = []
    depth = 0
    tokens: list[Token] = []
    start = 1
    for item, line in (*_lexemes(text), ("\n", 0)):
        if isinstance(item, Token):
            if not tokens:
                start = line
            tokens.append(item)
            continue
        if tokens:
            head = tokens[0].text
            if head in ENDS:
                depth = max(0, depth - 1)
                tokens = tokens[1:]
            while tokens and tokens[0].text in INSIDE:
                tokens = tokens[1:]
            opens = bool(tokens) and tokens[0].text in KEYWORDS
            if tokens:
                after_pipe = bool(found) and found[-1].piped and found[-1].line == start
                plain, redirected = _parted(tokens)
                piped = item in ("|", "&") or after_pipe
                found.append(Command(tuple(plain), start, depth + opens, piped, redirected))
            depth += opens
        if item == "(":
            depth += 1
        elif item == ")":
            depth = max(0, depth - 1)
        tokens = []
    return [command for command in found if command.tokens]


def expand(tokens: Sequence[Token], values: Values) -> list[str]:
    """Returns the tokens with every known variable replaced.

    An unknown variable stays as `$NAME`. An unquoted variable that is a token of its own may become several.
    """
    found: list[str] = []
    for token in tokens:
        text = expand_text(token.text, values)
        whole = _REFERENCE.fullmatch(token.text)
        array = bool(whole) and ("[@]" in token.text or "[*]" in token.text or token.text == "$@")
        if whole and text != token.text and (array or not token.quoted):
            found.extend(_split(text) if array or "$(" not in text else [text])
        elif text or token.quoted or token.text == text:
            found.append(text)
    return [text.replace(LITERAL_DOLLAR, "$") for text in found]


def unwrapped(tokens: Sequence[str]) -> list[str]:
    """Returns the command behind `eval`."""
    return _split(" ".join(tokens[1:])) if tokens[:1] == ["eval"] else list(tokens)


def expand_text(text: str, values: Values) -> str:
    """Returns `text` with every known variable replaced."""

    def replacement(match: re.Match[str]) -> str:
        if match["sum"] is not None:
            known = re.sub(_NAME, lambda name: values.get(name[0], name[0]), re.sub(r"[${}]", "", match["sum"]))
            number = _calculated(known)
            return match[0] if number is None else str(number)
        name = match["kubelet"] or match["braced"] or match["bare"]
        if name in values:
            return values[name]
        default = match["default"]
        return match[0] if default is None or "$" in default else default

    for _ in range(4):  # a value may name another variable
        text, before = _REFERENCE.sub(replacement, text), text
        if text == before:
            break
    return text


def unknown(text: str) -> list[str]:
    """Returns the names of variables and the substitutions that are left in an expanded text."""
    found = [match["kubelet"] or match["braced"] or match["bare"] or match[0] for match in _REFERENCE.finditer(text)]
    rest = _REFERENCE.sub("", text)
    return list(dict.fromkeys([*found, *(["$(…)"] if "$(" in rest or "`" in rest else [])]))


def for_kubelet(text: str) -> str:
    """Returns `text` with `$(NAME)` for every variable that is left, which the kubelet expands where env has it.

    Text with the output of a command in it stays as it is.
    """
    if "$(…)" in unknown(text):
        return text
    return _REFERENCE.sub(lambda match: f"$({name})" if (name := match["braced"] or match["bare"]) else match[0], text)


def assignments(command: Command) -> Iterator[tuple[str, Token]]:
    """Yields the variables that a command sets: `A=B`, `export A=B`, `declare -x A=B`; none for any other."""
    tokens = list(command.tokens)
    if tokens and tokens[0].text == ":":  # : ${NAME:=VALUE}
        defaults = [_DEFAULT.fullmatch(token.text) for token in tokens[1:]]
        for match in defaults:
            # A default that holds a variable of its own can't be read behind `:-`.
            if match:
                yield match[1], Token(match[2] if "$" in match[2] else f"${{{match[1]}:-{match[2]}}}")
        return
    if tokens and tokens[0].text in ("export", "declare", "local", "readonly", "typeset"):
        tokens = [token for token in tokens[1:] if not token.text.startswith("-")]
        tokens = [token for token in tokens if "=" in token.text]
    pairs = [ASSIGNMENT.fullmatch(token.text) for token in tokens]
    if tokens and all(pairs):
        for token, pair in zip(tokens, pairs, strict=True):
            if pair:
                before = f"${{{pair[1]}[@]}}{' ' if token.array else ''}" if f"{pair[1]}+=" in token.text else ""
                yield pair[1], Token(before + pair[2], token.quoted, token.array)


def is_export(command: Command) -> bool:
    """Returns whether the command only sets or exports variables."""
    return bool(command.tokens) and (
        command.tokens[0].text in ("export", "declare", "local", "readonly", "typeset", ":")
        or all(ASSIGNMENT.fullmatch(token.text) for token in command.tokens)
    )


def _calculated(text: str) -> int | None:
    """Returns the value of shell arithmetic with whole numbers alone; None if a name or another sign is in it."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    if not re.fullmatch(r"[\d\s+*/%()-]{1,200}", text):
        return None
    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _parted(tokens: Sequence[Token]) -> tuple[list[Token], str]:
    """Returns the tokens without redirections, and the redirections (`> file`, `2>&1`, `<<EOF`) as one text."""
    plain: list[Token] = []
    redirections: list[str] = []
    follows = False
    for token in tokens:
        if token.redirects or follows:
            redirections.append(token.text.replace(LITERAL_DOLLAR, "$"))
            follows = token.redirects and _names_nothing(token)
        else:
            plain.append(token)
    return plain, " ".join(redirections)


def _names_nothing(token: Token) -> bool:
    """Returns whether the file of a redirection is in the next token."""
    return not token.quoted and re.fullmatch(r"[\d&]*(?:>>?\|?|<<?<?-?|<>)", token.text) is not None


def _lexemes(text: str) -> Iterator[tuple[Token | str, int]]:
    """Yields tokens and operators, each with its line."""
    place, line = 0, 1
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
            yield sign, line
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
            yield token, line
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
        elif char in "'\"":
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
    elements = [item for item, _ in _lexemes(text[1:-1]) if isinstance(item, Token)]
    return " ".join(shlex.quote(one.text) if _is_whole(one) else one.text for one in elements)


def _is_whole(token: Token) -> bool:
    """Returns whether an element stays one argument: a quotation without a variable in front, or a command's output."""
    return "$(" in token.text or "`" in token.text or (token.quoted and not token.text.startswith("$"))


def _quotation(text: str, place: int, line: int) -> tuple[str, int]:
    """Returns the inside of the quotation that begins at `place`, and the place after it."""
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


def _closing(text: str, place: int) -> int:
    """Returns the place after `$(…)`, `${…}`, `` `…` ``, `(…)`, or `$NAME`."""
    if text[place] == "`":
        end = text.find("`", place + 1)
        return len(text) if end < 0 else end + 1
    opening = place if text[place] == "(" else place + 1
    pair = {"(": ")", "{": "}"}.get(text[opening : opening + 1])
    if pair is None:
        match = re.compile(rf"\$(?:{_NAME}|.)?", re.DOTALL).match(text, place)
        return match.end() if match else place + 1
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == text[opening]) - (text[at] == pair)
        if depth == 0:
            return at + 1
    return len(text)
