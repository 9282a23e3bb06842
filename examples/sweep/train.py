"""A small training with the standard library alone: logistic regression with momentum, which reports to its agent.

The script saves after every 10 steps and on SIGTERM, and continues where it was.
With `algorithm: pbt` it begins at the state of the trial TUNE_FROM, and trains to the step TUNE_STEPS.
The loss depends on these and the arguments alone.
"""

import argparse
import json
import math
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--momentum", type=float, required=True)
parser.add_argument("--decay", choices=["none", "cosine"], required=True)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-seconds", type=float, default=0.05)
flags = parser.parse_args()

folder = Path(os.environ.get("DTJ_CHECKPOINT_DIR", "checkpoints"))
draw = random.Random(0)
truth = [draw.gauss(0, 1) for _ in range(12)]
samples = [[draw.gauss(0, 1) for _ in truth] for _ in range(400)]
noisy = [sum(a * b for a, b in zip(x, truth, strict=True)) + draw.gauss(0, 0.5) for x in samples]
data = [(x, 1.0 if y > 0 else 0.0) for x, y in zip(samples, noisy, strict=True)]
train, held_out = data[:300], data[300:]


def probability(weights: list[float], x: list[float]) -> float:
    logit = max(-30.0, min(30.0, sum(a * b for a, b in zip(weights, x, strict=True))))
    return 1 / (1 + math.exp(-logit))


def loss(weights: list[float]) -> float:
    found = [probability(weights, x) for x, _ in held_out]
    return -sum(math.log(p if y else 1 - p) for p, (_, y) in zip(found, held_out, strict=True)) / len(held_out)


def report(**fields: object) -> None:
    """Sends progress to the agent, if there is one: one JSON object per datagram."""
    path = os.environ.get("DTJ_AGENT_SOCKET")
    if path and os.environ.get("RANK", "0") == "0":
        body = {"rank": 0, "attempt": int(os.environ["DTJ_ATTEMPT"]), **fields}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(json.dumps(body).encode(), path)


def save() -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "state.new"
    new.write_text(json.dumps({"step": step, "weights": weights, "speed": speed}))
    new.replace(folder / "state.json")
    report(checkpoint={"step": step, "path": str(folder), "time": time.time()})


def stop(number: int, frame: object) -> None:
    global stopping
    stopping = True


stopping = False
last = int(os.environ.get("TUNE_STEPS", flags.steps))
step, weights, speed = 0, [0.0] * len(truth), [0.0] * len(truth)
begin = folder / "state.json"
if not begin.exists() and "TUNE_FROM" in os.environ:
    begin = folder.parent / os.environ["TUNE_FROM"] / "state.json"
if begin.exists():
    state = json.loads(begin.read_text())
    step, weights, speed = state["step"], state["weights"], state["speed"]
report(phase="training", step=step, totalSteps=last, resumedStep=step)
signal.signal(signal.SIGTERM, stop)

while step < last and not stopping:
    time.sleep(flags.step_seconds)
    batch = random.Random(step).sample(train, 16)
    gradient = [0.0] * len(truth)
    for x, y in batch:
        error = (probability(weights, x) - y) / len(batch)
        gradient = [g + error * xi for g, xi in zip(gradient, x, strict=True)]
    rate = flags.lr * (0.5 + 0.5 * math.cos(math.pi * step / flags.steps) if flags.decay == "cosine" else 1)
    speed = [flags.momentum * v - rate * g for v, g in zip(speed, gradient, strict=True)]
    step, weights = step + 1, [w + v for w, v in zip(weights, speed, strict=True)]
    now = loss(weights)
    report(phase="training", step=step, totalSteps=last, loss=now, metrics={"val_loss": now})
    if step % 10 == 0:
        print(f"step {step} val_loss {now:.4f}", flush=True)
        save()
if stopping or step % 10:
    save()
if stopping:
    sys.exit(128 + signal.SIGTERM)
report(phase="done", step=step, totalSteps=last, loss=loss(weights), metrics={"val_loss": loss(weights)})
