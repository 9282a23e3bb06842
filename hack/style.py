#!/usr/bin/env python3
"""Checks the house style of CONTRIBUTING.md in the Python files that git knows.

python3 hack/style.py [PATH ...]            prints `path:line: rule: finding`, and exits 1 if there is one
python3 hack/style.py --count [PATH ...]    prints the docstrings and findings of each tree as a table

Suppressions do not exist: a rule that reports good English is narrowed here. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_FILE_LINES = 400
MAX_TEST_NAME = 80
MAX_TRAILING = 12

RULES = ("verb", "opening", "name", "banned", "trailing", "test-name", "file-length")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# A third-person verb, perhaps behind an adverb. No such verb ends in "ss", "us" or "is"; "Names of …" is a noun.
VERB = re.compile(r"(?:[A-Z][a-z]+ly [a-z]|[A-Z])[a-z-]*s(?<!ss)(?<!us)(?<![iI]s)\b(?! of\b)")
NOT_VERBS = re.compile(
    r"(?:Always|Arguments|As|Attempts|Besides|Bytes|Characters|Checkpoints|Conditions|Digests|Does|Events|Files|Floats|Folders|"
    r"Gradients|Has|Heartbeats|Images|Its|Keys|Limits|Lines|Losses|Means|Milliseconds|Minutes|Moments|Nodes|Numbers|Offsets|"
    r"Operators|Optimizers|Ordinals|Pages|Perhaps|Pods|Ports|Processes|Ranks|Rows|Rules|Samples|Seconds|Settings|Sizes|Tensors|"
    r"Texts|Tokens|Towards|Values|Versions|Was|Weights|Words|Workers|Yes)\b"
)
NAME_THEN_VERB = re.compile(r"`[^`]+`(?:,? and `[^`]+`)? (?:[a-z]+s|are|may|must|can)\b")
NO_VERB_NEEDED = re.compile(r"property|fixture|overload|\.setter")

OPENING = re.compile(
    r"(?:What|Which|Such|Nor|Whoever|Who|They|Them|It|It's|The same)\b"
    r"|(?:That|These|Those|This|One|Another) "
    r"(?:is|was|are|were|has|have|had|does|do|must|can|may|will|would|who|that|which)\b"
    r"|So (?!that\b|far\b)"
)
LATER_OPENING = re.compile(r"(?<=[.!?] )(?:What|Which|Nor|Such|Those|It|They|Them|So)\b(?![^.?]*\?)")

BANNED_NAME = re.compile(r"(?:^|_)(?:said|told|words?)(?:_|$)", re.IGNORECASE)
BANNED = {r"\banew\b": "again", r"\bthereof\b": "of …", r"\bnor\b": "or", r"\bgo(?:es)? on\b": "continue"}
BANNED_IN_PROSE = {**BANNED, r"\b(?:says|said|tells|told)\b": "reports, returns, logs, warns, rejects"}

DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|mypy:)[^(#]*")
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|https?://\S+")


class Finding(NamedTuple):
    """One departure from the house style."""

    path: str
    line: int
    rule: str
    text: str


class Source:
    """One file: its syntax, docstrings and comments."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = text.count("\n")
        self.nodes = list(ast.walk(ast.parse(text)))
        self.comments = [
            (token.start[0], bool(token.line[: token.start[1]].strip()), DIRECTIVE.sub("", token.string).strip("# "))
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT and not token.string.startswith("#!")
        ]

    def findings(self) -> Iterator[Finding]:
        """Yields every departure of this file."""
        found = [*self.verbs(), *self.names(), *self.trailing()]
        for line, text in [*self.docstrings(), *self.comment_blocks()]:
            found += [*opening(line, text), *banned(line, text, BANNED_IN_PROSE)]
        found += [finding for line, text in self.messages() for finding in banned(line, text, BANNED)]
        if self.lines > MAX_FILE_LINES:
            found.append(
                (self.lines, "file-length", f"{self.lines} lines: split the file, {MAX_FILE_LINES} are the limit")
            )
        yield from (Finding(self.path, *finding) for finding in found)

    def function_docstrings(self) -> Iterator[tuple[FunctionNode, str]]:
        """Yields the functions whose docstring must open with a verb."""
        for node in self.nodes:
            if isinstance(node, FunctionNode) and (text := ast.get_docstring(node)) and needs_verb(node):
                yield node, text

    def verbs(self) -> Iterator[tuple[int, str, str]]:
        for node, text in self.function_docstrings():
            if not opens_with_verb(node, text):
                yield (
                    node.lineno,
                    "verb",
                    f'"{text[:30].splitlines()[0]} …": open with a verb, such as "Returns" or "Raises"',
                )

    def names(self) -> Iterator[tuple[int, str, str]]:
        for node in self.nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                    pass
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    pass
                case _:
                    continue
            if BANNED_NAME.search(name):
                yield node.lineno, "name", f"{name}: write report, message, reason, response, tokens"
            if name.startswith("test_") and len(name) > MAX_TEST_NAME:
                yield node.lineno, "test-name", f"{name}: {len(name)} characters, {MAX_TEST_NAME} are the limit"

    def trailing(self) -> Iterator[tuple[int, str, str]]:
        for line, is_trailing, text in self.comments:
            if is_trailing and len(text.split()) > MAX_TRAILING:
                yield line, "trailing", f"more than {MAX_TRAILING} words: write the comment above the line"

    def docstrings(self) -> Iterator[tuple[int, str]]:
        """Yields every string that stands alone, as those of modules, classes, functions and fields do."""
        for node in self.nodes:
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.lineno, node.value.value

    def messages(self) -> Iterator[tuple[int, str]]:
        """Yields the other strings of the product that hold a space: people read most of them."""
        alone = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        for node in [] if self.path.startswith("tests/") else self.nodes:
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
                and id(node) not in alone
            ):
                yield node.lineno, node.value

    def comment_blocks(self) -> Iterator[tuple[int, str]]:
        """Yields trailing comments, and each run of whole-line comments as one text."""
        blocks: list[tuple[int, list[str]]] = []
        end = -1
        for line, is_trailing, text in self.comments:
            if is_trailing or line != end + 1:
                blocks.append((line, []))
            blocks[-1][1].append(text)
            end = -1 if is_trailing else line
        yield from ((line, " ".join(texts)) for line, texts in blocks)


def needs_verb(node: FunctionNode) -> bool:
    """Returns whether a function is no test and not decorated into what a noun describes."""
    decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    return not node.name.startswith("test_") and not NO_VERB_NEEDED.search(decorators)


def opens_with_verb(node: FunctionNode, docstring: str) -> bool:
    """Returns whether a docstring opens with a verb, or describes a parameter of `__init__`."""
    if node.name == "__init__" and NAME_THEN_VERB.match(docstring):
        return True
    return bool(VERB.match(docstring)) and not NOT_VERBS.match(docstring)


def opening(line: int, text: str) -> Iterator[tuple[int, str, str]]:
    """Yields a first sentence that opens with a pronoun, or a later one without its noun."""
    flat = " ".join(text.split())
    if match := OPENING.match(flat) or LATER_OPENING.search(flat):
        yield line, "opening", f'"{flat[match.start() :][:40]} …": open the sentence with its noun or its verb'


def banned(line: int, text: str, rules: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yields the banned expressions of one text, but not those that the text quotes."""
    for pattern, better in rules.items():
        if match := re.search(pattern, QUOTED.sub("", text)):
            yield line, "banned", f'"{match[0]}": write {better}'


def table(sources: list[Source], findings: list[Finding]) -> str:
    """Returns one row a tree: function docstrings, those that open with a verb, and the findings by rule."""
    counts: Counter[tuple[str, str]] = Counter((finding.path.split("/")[0], finding.rule) for finding in findings)
    for source in sources:
        for node, text in source.function_docstrings():
            counts[source.path.split("/")[0], "docstrings"] += 1
            counts[source.path.split("/")[0], "verb first"] += opens_with_verb(node, text)
    columns = ("docstrings", "verb first", *RULES)
    trees = sorted({source.path.split("/")[0] for source in sources})
    rows = [(tree, *(counts[tree, column] for column in columns)) for tree in trees]
    rows.append(("all", *(sum(counts[tree, column] for tree in trees) for column in columns)))
    return "\n".join("".join(str(cell).ljust(14) for cell in row).rstrip() for row in [("tree", *columns), *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders (default: all)")
    parser.add_argument("--count", action="store_true", help="print the table and exit 0")
    arguments = parser.parse_args()
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *arguments.paths]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    paths = sorted({path for path in listed if path.endswith(".py") and Path(path).is_file()})
    sources = [Source(path, Path(path).read_text("utf-8")) for path in paths]
    findings = sorted(finding for source in sources for finding in source.findings())
    for finding in [] if arguments.count else findings:
        print(f"{finding.path}:{finding.line}: {finding.rule}: {finding.text}")
    if arguments.count:
        print(table(sources, findings))
    return 1 if findings and not arguments.count else 0


if __name__ == "__main__":
    sys.exit(main())
