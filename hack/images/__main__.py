"""The command line: `python3 -m hack.images COMMAND`."""

from __future__ import annotations

import argparse
import sys

from hack.cluster.shell import ProvisionError
from hack.images import build, deploy, recipes

REFERENCES = {"names": build.names, "build": build.ensure, "frameworks": build.frameworks, "mlflow": build.mlflow}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m hack.images", description="Images and the chart on the local cluster."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build and push changed images, print the references")
    commands.add_parser("names", help="print the references of the last build")
    commands.add_parser("frameworks", help="build and push the image of tests/e2e/on_frameworks.py, print it")
    commands.add_parser("mlflow", help="build and push the image of tests/e2e/on_tracking.py, print it")
    engines = commands.add_parser("engines", help="build and push the images of the engines, print the references")
    engines.add_argument("engine", nargs="*", help=f"{', '.join(recipes.ENGINES)}; by default all")
    commands.add_parser("deploy", help="build, then install or upgrade the chart and wait until the operator is ready")
    options = parser.parse_args()
    if unknown := set(getattr(options, "engine", ())) - set(recipes.ENGINES):
        engines.error(f"no engine {', '.join(sorted(unknown))}: {', '.join(recipes.ENGINES)} have images of their own")
    try:
        if options.command == "deploy":
            deploy.deploy()
        else:
            found = build.engines(options.engine) if options.command == "engines" else REFERENCES[options.command]()
            for name, reference in found.items():
                print(f"{name}={reference}")
    except ProvisionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
