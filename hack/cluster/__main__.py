"""The command line: `python3 -m hack.cluster COMMAND`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from hack.cluster import baseimage, cluster, gobuild, policies
from hack.cluster.controlplane import ControlPlane
from hack.cluster.shell import ProvisionError
from hack.cluster.versions import CLIENTS, CONTROL_PLANE, PARTNERS, TOOLS


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except ProvisionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m hack.cluster", description="A real Kubernetes for development and tests."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="create or repair a kind cluster with a registry; leave a healthy one alone")
    down = commands.add_parser("down", help="delete the cluster, and stop the Docker engine if `up` started it")
    down.add_argument("--keep-engine", action="store_true", help="leave the engine running")
    down.add_argument("--purge", action="store_true", help="remove the registry's images and the shared directory too")
    commands.add_parser("env", help="print the exports: KUBECONFIG and PATH")
    commands.add_parser("heal-network", help="restore routes after node containers were stopped and started")
    enforcement = commands.add_parser(
        "policies", help="enforce NetworkPolicies, or stop to; a new cluster whose network is ours enforces none"
    )
    enforcement.add_argument("state", choices=("on", "off"))
    programs = commands.add_parser("bin", help="print the folder of these programs; build those that are missing")
    programs.add_argument(
        "names", nargs="*", metavar="NAME", help=f"default: {' '.join(dict.fromkeys(CONTROL_PLANE + CLIENTS))}"
    )
    commands.add_parser("base-image", help="print the image to build this project's images on")
    plane = commands.add_parser(
        "control-plane", help="run an API server without nodes, in the foreground until interrupted"
    )
    plane.add_argument("--data-dir", type=Path, help="keep its files here (default: a temporary folder)")
    return parser


def _run(options: argparse.Namespace) -> None:
    match options.command:
        case "up":
            cluster.up()
        case "down":
            cluster.down(keep_engine=options.keep_engine, purge=options.purge)
        case "env":
            print(cluster.environment())
        case "heal-network":
            cluster.heal_network()
        case "policies":
            policies.on() if options.state == "on" else policies.off()
        case "bin":
            names = options.names or dict.fromkeys(CONTROL_PLANE + CLIENTS)
            unknown = sorted(set(names) - set(TOOLS) - set(PARTNERS))
            if unknown:
                raise ProvisionError(f"unknown: {', '.join(unknown)}; known: {', '.join(TOOLS)}")
            print(gobuild.bin_folder(names))
        case "base-image":
            print(baseimage.python_image())
        case "control-plane":
            _control_plane(options.data_dir)


def _control_plane(data_dir: Path | None) -> None:
    programs = gobuild.bin_folder(CONTROL_PLANE)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with (
        tempfile.TemporaryDirectory(prefix="dtj-control-plane-") as temporary,
        ControlPlane(programs, data_dir or Path(temporary)) as plane,
    ):
        print(f"# ready in {plane.started_in:.1f} s; Ctrl-C stops it")
        print(f"export KUBECONFIG={plane.kubeconfig} PATH={programs}:$PATH", flush=True)
        ended.wait()


if __name__ == "__main__":
    sys.exit(main())
