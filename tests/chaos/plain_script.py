"""The training of most chaos groups: integers in place of tensors, so that a restart costs milliseconds, not torch.

Whole numbers are added in any order with the same sum, so the trajectory is the same bit for bit in
groups of any size. `trajectory` is the uninterrupted run. The standard library alone: the script
knows of the agent only what docs/reference/contract.md promises to any script.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

PRIME = (1 << 61) - 1
SAMPLES = 5040
"""Samples of an epoch."""
BATCH = 12
"""Samples of a step over all ranks."""
EVERY = 20
"""Steps between two checkpoints."""
KEEP = 3
MESSAGE = struct.Struct("<qqqq")
START_SECONDS = 180.0

State = list[int]
Step = tuple[int, float, tuple[int, ...]]
"""Number of a step, its loss, and its samples over all ranks."""


def ids_of(step: int) -> list[int]:
    """Returns the samples of a step: each sample once per epoch, in another order in each."""
    epoch, place = divmod(step * BATCH, SAMPLES)
    return [(1013 * (place + k) + 7 * epoch) % SAMPLES for k in range(BATCH)]


def gradient(state: State, ids: Sequence[int]) -> State:
    """Returns what these samples contribute to a step."""
    return [sum((value + k) * (sample + 1) ** 2 for sample in ids) % PRIME for k, value in enumerate(state)]


def apply(state: State, total: State) -> tuple[State, float]:
    """Returns the next state, and the loss of the step."""
    moved = [(3 * value + change) % PRIME for value, change in zip(state, total, strict=True)]
    return moved, sum(moved) % PRIME / PRIME


def start() -> State:
    """Returns the state before the first step."""
    return [1, 2, 3]


def trajectory(steps: int) -> Iterator[Step]:
    """Yields each step of the uninterrupted run."""
    state = start()
    for step in range(steps):
        state, loss = apply(state, gradient(state, ids_of(step)))
        yield step + 1, loss, tuple(sorted(ids_of(step)))


class Checkpoints:
    """Files `saved-STEP` with a checksum, committed by a rename while the lease is this attempt's."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder, self.attempt = folder, attempt

    def save(self, step: int, state: State) -> bool:
        """Returns whether the checkpoint was committed. A volume without room costs this one, not the training."""
        part = self.folder / f"part-{step:08d}-{self.attempt}"
        body = json.dumps({"step": step, "state": state}).encode()
        try:
            part.write_bytes(b"%08x\n" % zlib.crc32(body) + body)
            if int((self.folder / "attempt").read_text()) != self.attempt:
                return False
            part.rename(self.folder / f"saved-{step:08d}")
        except OSError as error:
            print(f"no checkpoint of step {step}: {error}", flush=True)
            part.unlink(missing_ok=True)
            return False
        for old in sorted(self.folder.glob("saved-*"))[:-KEEP]:
            old.unlink(missing_ok=True)
        return True

    def newest(self) -> tuple[int, State]:
        """Returns step and state of the newest whole checkpoint."""
        for path in sorted(self.folder.glob("saved-*"), reverse=True):
            checksum, _, body = path.read_bytes().partition(b"\n")
            if checksum == b"%08x" % zlib.crc32(body):
                found = json.loads(body)
                return found["step"], found["state"]
        return 0, start()


class Ring:
    """Sums over all ranks through rank 0, which serves MASTER_PORT."""

    def __init__(self, rank: int, world: int, attempt: int, log: Log) -> None:
        self.rank, self.world, self.attempt, self.log = rank, world, attempt, log
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.peers: list[socket.socket] = []
        deadline = time.monotonic() + START_SECONDS
        if rank == 0:
            self._serve(address)
            return
        while True:
            peer = socket.socket()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                peer.connect(address)
                peer.sendall(MESSAGE.pack(attempt, rank, 0, 0))
                break
            except OSError:
                peer.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        self.peers = [peer]

    def _serve(self, address: tuple[str, int]) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(self.world)
            joined: dict[int, socket.socket] = {}
            while len(joined) < self.world - 1:
                peer, _ = listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                attempt, rank, *_ = MESSAGE.unpack(receive(peer, MESSAGE.size))
                if attempt != self.attempt or rank in joined:
                    self.log.write(f"stale {attempt} {rank}")
                joined[rank] = peer
            self.peers = [peer for _, peer in sorted(joined.items())]

    def reduce(self, values: State, last: int) -> tuple[State, int]:
        """Returns the sums over all ranks, and rank 0's `last`."""
        if self.rank:
            self.peers[0].sendall(MESSAGE.pack(*values, last))
            *total, last = MESSAGE.unpack(receive(self.peers[0], MESSAGE.size))
            return total, last
        total = list(values)
        for peer in self.peers:
            *theirs, _ = MESSAGE.unpack(receive(peer, MESSAGE.size))
            total = [(a + b) % PRIME for a, b in zip(total, theirs, strict=True)]
        for peer in self.peers:
            peer.sendall(MESSAGE.pack(*total, last))
        return total, last


class Log:
    """The records of one process, each of them one write: a process that is killed leaves whole lines."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, text: str) -> None:
        """Appends one record."""
        os.write(self._file, f"{text}\n".encode())


def receive(peer: socket.socket, size: int) -> bytes:
    """Returns so many bytes. Raises ConnectionError if the peer is gone."""
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionError("a rank is gone")
        data += more
    return data


def is_end(path: Path, step: int) -> bool:
    """Returns whether the file `finish` is there, with a step that was done; an empty one ends the training at once."""
    try:
        return step >= int(path.read_text() or 0)
    except OSError:
        return False


def main() -> None:
    """Trains to the step in the file `finish`."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt, folder = int(os.environ["DTJ_ATTEMPT"]), Path(os.environ["CHAOS_FOLDER"])
    pause, volume = float(os.environ["CHAOS_STEP_SECONDS"]), Path(os.environ["DTJ_CHECKPOINT_DIR"])
    log, agent = Log(folder / "log"), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def report(**what: object) -> None:
        try:
            agent.sendto(
                json.dumps({**what, "rank": rank, "attempt": attempt}).encode(), os.environ["DTJ_AGENT_SOCKET"]
            )
        except OSError:
            pass  # an agent that is busy or stopped must not hold the training

    agent.setblocking(False)
    report(phase="loading")
    ring, checkpoints = Ring(rank, world, attempt, log), Checkpoints(volume, attempt)
    step, state = checkpoints.newest() if rank == 0 else (0, [0, 0, 0])
    state, step = ring.reduce(state, step)
    log.write(f"begin {time.monotonic():.6f} {attempt} {rank} {world} {step}")
    report(phase="training", resumedStep=step)
    last = 0
    while not last:
        mine = ids_of(step)[rank::world]
        total, last = ring.reduce(gradient(state, mine), int(rank == 0 and is_end(folder / "finish", step + 1)))
        state, loss = apply(state, total)
        step += 1
        log.write(f"step {time.monotonic():.6f} {attempt} {step} {loss.hex()} {','.join(map(str, mine)) or '-'}")
        report(phase="training", step=step, loss=loss)
        if rank == 0 and step % EVERY == 0 and checkpoints.save(step, state):
            log.write(f"commit {time.monotonic():.6f} {attempt} {step}")
            report(checkpoint={"step": step, "path": f"saved-{step:08d}", "time": time.time()})
        time.sleep(pause)
    sys.exit(0)


if __name__ == "__main__":
    # A stub of the test. Scripts that import only the standard library are not forked from the warm process.
    import torch  # noqa: F401

    main()
