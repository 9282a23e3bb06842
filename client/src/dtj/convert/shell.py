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

from dtj.convert.lexer import LITERAL_DOLLAR, NAME, Token, lexemes

KEYWORDS = frozenset({"if", "for", "while", "until", "case", "function", "select", "{", "("})
ENDS = frozenset({"fi", "done", "esac", "}", ")"})
INSIDE = frozenset({"then", "do", "else", "elif"})
ASSIGNMENT = re.compile(rf"({NAME})(?:\[\w*\])?\+?=(.*)", re.DOTALL)
_DEFAULTED = r"(?::?[-=](?P<default>(?:[^{}]|{[^{}]*})*))?"  # one more variable may be in it
_REFERENCE = re.compile(
    r"\$(?:\(\((?P<sum>[^()]*)\)\)|\((?P<kubelet>[A-Z_][A-Z0-9_]*)\)"
    rf"|{{(?P<braced>{NAME}|[0-9]+|[@*])(?:\[[@*]\])?{_DEFAULTED}}}|(?P<bare>{NAME}|[@*0-9]))"
)
_OTHER = re.compile(rf"\$\{{[!#]?({NAME}|[0-9]+|[@*])[^{{}}]*\}}")
"""An expansion that is not calculated here, such as `${NAME[1]}` or `${NAME%.*}`; its name is the first group."""
_EXPR = re.compile(r"\$\(\s*expr\s+([^()`$]*)\)|`\s*expr\s+([^()`$]*)`")
_QUOTED = r"""[^()'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*\""""
OUTPUT = re.compile(rf"\$\((?!\(|[A-Z_][A-Z0-9_]*\))(?:{_QUOTED}|\((?:{_QUOTED})*\))*\)|`[^`]*`", re.DOTALL)
"""The output of a command, `$(…)`; `$(NAME)` is a variable of the kubelet."""
SHELL_HAS = frozenset({"PWD", "HOME", "HOSTNAME", "PATH", "RANDOM", "SECONDS", "UID", "PPID", "IFS", "OLDPWD"})
_DEFAULT = re.compile(rf"\$\{{({NAME}):?=(.*)\}}", re.DOTALL)
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}

Values = Mapping[str, str]


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
    depth = groups = 0
    tokens: list[Token] = []
    start = 1
    for item, line in (*lexemes(text), ("\n", 0)):
        if isinstance(item, Token):
            if not tokens:
                start = line
            tokens.append(item)
            continue
        of_case = item == ")" and not groups  # such as `--name)`
        if of_case:
            tokens = tokens[:3] if tokens and tokens[0].text == "case" else []
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
        if item in ("(", ")") and not of_case:
            change = 1 if item == "(" else -1
            depth, groups = max(0, depth + change), groups + change
        tokens = []
    return [command for command in found if command.tokens]


def expand(tokens: Sequence[Token], values: Values, *, mark: bool = False) -> list[str]:
    """Returns the tokens with every known variable replaced.

    An unknown variable stays as `$NAME`. An unquoted variable that is a token of its own may become several.
    `mark`: a `$` that no shell expands is LITERAL_DOLLAR in the tokens, so that it differs from an unknown variable.
    """
    found: list[str] = []
    for token in tokens:
        text = expand_text(token.text, values)
        whole = _REFERENCE.fullmatch(token.text)
        array = bool(whole) and ("[@]" in token.text or "[*]" in token.text or token.text == "$@")
        if whole and text != token.text and (array or not token.quoted):
            found.extend(_split(text))
        elif text or token.quoted or token.text == text:
            found.append(text)
    return found if mark else [plain(text) for text in found]


def plain(text: str) -> str:
    """Returns `text` with a `$` for every LITERAL_DOLLAR."""
    return text.replace(LITERAL_DOLLAR, "$")


def unwrapped(tokens: Sequence[str]) -> list[str]:
    """Returns the command behind `eval`."""
    return _split(plain(" ".join(tokens[1:]))) if tokens[:1] == ["eval"] else list(tokens)


def expand_text(text: str, values: Values) -> str:
    """Returns `text` with every known variable replaced."""

    def replacement(match: re.Match[str]) -> str:
        if match["sum"] is not None:
            known = re.sub(NAME, lambda name: values.get(name[0], name[0]), re.sub(r"[${}]", "", match["sum"]))
            number = _calculated(known)
            return match[0] if number is None else str(number)
        name = match["kubelet"] or match["braced"] or match["bare"]
        if name in values:
            return values[name]
        if match["default"] is None:
            return match[0]
        default = _REFERENCE.sub(replacement, match["default"])
        return match[0] if "$" in default else re.sub(r"""^(["'])(.*)\1$""", r"\2", default)

    for _ in range(4):  # a value may name another variable
        text, before = _EXPR.sub(_sum_of_expr, _REFERENCE.sub(replacement, text)), text
        if text == before:
            break
    return text


def unknown(text: str) -> list[str]:
    """Returns the names of variables and the substitutions that are left in an expanded text."""
    found = [match["kubelet"] or match["braced"] or match["bare"] or match[0] for match in _REFERENCE.finditer(text)]
    rest = _REFERENCE.sub("", text)
    found += [match[1] for match in _OTHER.finditer(rest)]
    return list(dict.fromkeys([*found, *(["$(…)"] if "$(" in rest or "`" in rest else [])]))


def is_more_than_output(text: str) -> bool:
    """Returns whether a text has words of its own around the output of commands."""
    return re.search(r"\s[\w.-]", OUTPUT.sub("", text).strip()) is not None


def quoted(argument: str) -> str:
    """Returns an expanded argument for a shell that reads what is left in it: variables, and output of commands."""
    if not unknown(argument):
        return plain(shlex.quote(argument))
    if _REFERENCE.fullmatch(argument) and "$(" not in argument:
        return argument  # may be empty, or several words
    live = re.compile(rf"{_REFERENCE.pattern}|{OUTPUT.pattern}|{_OTHER.pattern}")
    parts: list[str] = []
    end = 0
    for match in live.finditer(argument):
        parts += [re.sub(r'(["\\`$])', r"\\\1", argument[end : match.start()])]
        parts += [f"${match['kubelet']}" if match["kubelet"] else match[0]]
        end = match.end()
    text = f'"{"".join(parts)}{re.sub(chr(34), chr(92) + chr(34), argument[end:])}"'
    return text.replace(LITERAL_DOLLAR, r"\$")


def sets(text: str) -> set[str]:
    """Returns the variables that a shell text sets, and those that every shell has."""
    try:
        found = {name for step in commands(text) for name, _ in assignments(step)}
    except ValueError:
        found = set()
    loops = re.findall(rf"\bfor\s+({NAME})\s+in\b|\bread\s+(?:-\w+\s+)*({NAME})", text)
    return {*found, *(name for pair in loops for name in pair if name), *SHELL_HAS}


def marked(text: str) -> str:
    """Returns the tokens of a shell text, with LITERAL_DOLLAR for every `$` that the shell does not expand."""
    try:
        return " ".join(item.text for item, _ in lexemes(text) if isinstance(item, Token))
    except ValueError:  # a quotation without an end
        return text


def for_kubelet(text: str) -> str:
    """Returns `text` with `$(NAME)` for every variable that is left, which the kubelet expands where env has it.

    Text with the output of a command in it stays as it is.
    """
    if "$(…)" in unknown(text):
        return plain(text)
    text = _REFERENCE.sub(
        lambda match: f"$({match['braced'] or match['bare']})" if _is_named(match) else match[0], text
    )
    # The kubelet reads `$$` as `$`.
    return plain(re.sub(rf"{LITERAL_DOLLAR}(?=[($\0])", "$$", text))


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


def _sum_of_expr(match: re.Match[str]) -> str:
    number = _calculated((match[1] or match[2] or "").replace("\\", ""))
    return match[0] if number is None else str(number)


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


def _is_named(match: re.Match[str]) -> bool:
    return (match["braced"] or match["bare"] or "0")[0] not in "@*0123456789"


def _split(text: str) -> list[str]:
    """Returns the tokens of a text; the output of a command stays in one."""
    outputs = OUTPUT.findall(text)
    marked = OUTPUT.sub("\1", text)
    try:
        tokens = shlex.split(marked)
    except ValueError:
        tokens = marked.split()
    return [re.sub("\1", lambda _: outputs.pop(0), token) for token in tokens]


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
