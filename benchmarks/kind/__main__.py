"""Disturbs jobs on the kind cluster of `make cluster-up deploy`; each shape's measurements replace its last ones."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kind.results import REPORT, SHAPES, render
from benchmarks.report import circumstances


def main() -> int:
    """Measures the requested shapes and prints their tables. Returns 1 if the oracle of one has found anything."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.kind", description=__doc__)
    p.add_argument("shape", nargs="*", choices=[*SHAPES, []], default=[], help=f"default: {' '.join(SHAPES)}")
    p.add_argument("--trials", type=int, help="default: 10 of each ordinal, 15 / 5 of nodes")
    p.add_argument("--out", type=Path, help="keep the measurements in this JSON file")
    p.add_argument("--render", action="store_true", help="measure nothing; write the tables from results.json")
    args = p.parse_args()
    if args.render:
        REPORT.update_readme()
        return 0
    failed = False
    for key in args.shape or SHAPES:
        shape, trials = SHAPES[key], args.trials or SHAPES[key].trials
        how = circumstances(trials, "gloo, 3 ranks; control plane and nodes on the same machine")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "measured.json")
            command = [sys.executable, "-m", "tests.chaos.on_kind", *shape.arguments, "--trials", str(trials)]
            code = subprocess.run([*command, "--out", str(out)], check=False).returncode
            if code:
                failed = True
                print(f"{key}: exit code {code}; nothing is kept of this shape", file=sys.stderr)
                continue
            found = {**json.loads(out.read_text()), "circumstances": how}
        if args.out:
            args.out.write_text(json.dumps({**REPORT.load(args.out), key: found}, indent=1) + "\n")
        print(render(shape, found), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
