"""Executes a notebook without Jupyter, in this process, and keeps what its cells print.

python3 -m hack.notebook FILE            executes every code cell in order, and writes the outputs into the file
python3 -m hack.notebook --check FILE    the same, but compares with the kept outputs; exits 1 if they differ

Numbers are not compared, because they are times and losses: what must hold of them is asserted by the cells. Of the
values that a kernel would display, text and SVG are known. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def execute(notebook: dict[str, Any], folder: Path) -> list[list[Cell]]:
    """Returns the outputs of each code cell, executed in `folder` in one namespace, as a kernel does it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        return [_execute(source(cell), namespace, f"cell {at}") for at, cell in enumerate(code_cells(notebook), 1)]
    finally:
        os.chdir(before)


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def _execute(text: str, namespace: dict[str, Any], name: str) -> list[Cell]:
    tree = ast.parse(text, name)
    value = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[Cell] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_svg_"):
            data["image/svg+xml"] = _lines(value._repr_svg_())
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def kept(notebook: dict[str, Any], outputs: list[list[Cell]]) -> dict[str, Any]:
    """Returns the notebook with these outputs."""
    cells = iter(zip(outputs, range(1, len(outputs) + 1), strict=True))
    written = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            shown, count = next(cells)
            written.append({**cell, "execution_count": count, "outputs": shown})
        else:
            written.append(cell)
    return {**notebook, "cells": written}


def shown(outputs: list[list[Cell]]) -> list[str]:
    """Returns what a reader sees, as lines without numbers and without the width of columns."""
    lines = []
    for number, cell in enumerate(outputs, 1):
        lines.append(f"cell {number}")
        for output in cell:
            text = "".join(output.get("text", ())) or "".join(output.get("data", {}).get("text/plain", ()))
            lines += [" ".join(NUMBER.sub("N", line).split()) for line in text.splitlines()]
            lines += ["an SVG"] if "image/svg+xml" in output.get("data", {}) else []
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m hack.notebook", description="Executes a notebook.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the kept outputs instead of writing them")
    options = parser.parse_args(arguments)
    path = options.file.resolve()
    notebook = json.loads(path.read_text("utf-8"))
    outputs = execute(notebook, path.parent)
    if not options.check:
        path.write_text(json.dumps(kept(notebook, outputs), indent=1, ensure_ascii=False) + "\n", "utf-8")
        return 0
    before = shown([cell["outputs"] for cell in code_cells(notebook)])
    difference = list(difflib.unified_diff(before, shown(outputs), "kept", "executed", lineterm=""))
    print("\n".join(difference))
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
