#!/usr/bin/env python3
"""Generates files from the API types (the CRD, its copy in the chart, the reference page), the tables of dtj convert
(docs/migrate), the chart's README and dashboard, and VERSION.

python3 hack/generate.py            writes the files
python3 hack/generate.py --check    writes nothing; exits 1 if a file is stale
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("contract/src", "core/src", "agent/src", "client/src")
sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in SOURCES)]  # no install needed

from dtj.convert import pages  # noqa: E402 (needs the path above)
from dtj_contract import names  # noqa: E402 (needs the path above)
from dtj_core.api import crd, docs, runtime_crd  # noqa: E402 (needs the path above)
from hack import chart_readme, dashboard  # noqa: E402
from hack.version import stamped  # noqa: E402

# Half of the 256 KiB that `kubectl apply` can keep in its annotation, as JSON without spaces.
MAX_CRD_BYTES = 128 * 1024


def outputs(chart_copy: Path) -> dict[Path, str]:
    definition = crd.render()
    size = len(json.dumps(crd.crd(), separators=(",", ":")).encode())
    if size > MAX_CRD_BYTES:
        raise SystemExit(f"the CRD has {size} bytes as JSON, more than {MAX_CRD_BYTES}: shorten it")
    return {
        ROOT / "crds" / f"{crd.NAME.partition('.')[2]}_{crd.NAME.partition('.')[0]}.yaml": definition,
        chart_copy: definition,
        ROOT / "crds" / f"{runtime_crd.NAME.partition('.')[2]}_{names.RUNTIME_PLURAL}.yaml": runtime_crd.render(),
        ROOT / "charts/dtj-operator/files/crd-runtimes.yaml": runtime_crd.render(),
        ROOT / "docs/reference/api.md": docs.render(),
        **{ROOT / "docs/migrate" / name: text for name, text in pages.render().items()},
        ROOT / "charts/dtj-operator/README.md": chart_readme.render(ROOT / "charts/dtj-operator/values.yaml"),
        ROOT / "charts/dtj-operator/files/dashboard.json": dashboard.render(),
        **stamped(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument(
        "--chart",
        type=Path,
        default=ROOT / "charts/dtj-operator/files/crd.yaml",
        metavar="PATH",
        help="the chart's copy of the CRD (default: %(default)s)",
    )
    arguments = parser.parse_args()
    stale = [p for p, text in outputs(arguments.chart).items() if not p.exists() or p.read_text("utf-8") != text]
    for path in stale:
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(outputs(arguments.chart)[path], "utf-8")
        print(f"{'stale' if arguments.check else 'wrote'}: {path}", file=sys.stderr)
    if arguments.check and stale:
        print("run python3 hack/generate.py and commit the result", file=sys.stderr)
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
