"""A trial that works or hangs: before its first step, or behind its third one, deaf to SIGTERM in both cases."""

import json
import os
import signal
import socket
import sys

mode = sys.argv[sys.argv.index("--mode") + 1]


def report(**fields: object) -> None:
    body = {"rank": 0, "attempt": int(os.environ["DTJ_ATTEMPT"]), **fields}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(json.dumps(body).encode(), os.environ["DTJ_AGENT_SOCKET"])


if mode != "works":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "sleeps":
    while True:
        signal.pause()
for step in (1, 2, 3):
    report(phase="training", step=step, metrics={"val_loss": 1 / step})
while mode == "spins":
    pass
report(phase="done", step=3, metrics={"val_loss": 1 / 3})
