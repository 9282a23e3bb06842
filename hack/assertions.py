#!/usr/bin/env python3
"""Compares the assertions of two trees' tests, whatever their names and texts.

python3 hack/assertions.py OLD NEW    prints the assertions that only one of the trees has

A refactoring renames and rewords, but may not weaken a test. Identifiers, attributes and string
texts are therefore left out; shape, operators and numbers count. Standard library only.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path


class Anonymous(ast.NodeTransformer):
    """Replaces names and texts by placeholders."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name("name", node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = "name"
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        node.arg = "name" if node.arg else None
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg("name")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("text") if isinstance(node.value, str | bytes) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("text")


def assertions(tree: Path) -> dict[str, list[str]]:
    """Returns the places and sources of each anonymous assertion below tests/."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((tree / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assert):
                kind, expression = "assert", ast.unparse(node.test)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises":
                kind, expression = "raises", ast.unparse(node)
            else:
                continue
            shape = ast.unparse(Anonymous().visit(ast.parse(expression, mode="eval")))
            found[f"{kind} {shape}"].append(f"{path.relative_to(tree)}:{node.lineno}: {expression[:150]}")
    return found


def main(old: str, new: str) -> None:
    """Prints the differences of the two trees."""
    before, after = assertions(Path(old)), assertions(Path(new))
    counts = [Counter({shape: len(places) for shape, places in side.items()}) for side in (before, after)]
    print(f"{counts[0].total()} assertions before, {counts[1].total()} after")
    for title, only, places in (("gone", counts[0] - counts[1], before), ("new", counts[1] - counts[0], after)):
        print(f"\n{title}: {only.total()}")
        for shape, number in sorted(only.items()):
            print(f"{number} x {shape[:150]}", *places[shape][:4], sep="\n    ")


if __name__ == "__main__":
    main(*sys.argv[1:])
