"""The optimizer steps of an unmodified script, counted in a forked worker and read by its agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent

import pytest

from dtj_agent.net.loop import Loop
from dtj_agent.workers.report_socket import ReportSocket
from dtj_agent.workers.stacks import StackFiles
from dtj_contract.step_page import StepCount
from tests.lib.ports import free_port
from tests.lib.waiting import wait_until

pytestmark = pytest.mark.torch
PATIENCE = 300.0

# Ten iterations of each, and the steps that the agent counts.
CASES = {
    "SGD": ("opt = torch.optim.SGD(ps, lr=0.1)\nrepeat(opt.step)", 10),
    "AdamW with foreach": ("opt = torch.optim.AdamW(ps, foreach=True)\nrepeat(opt.step)", 10),
    "AdamW that is fused": ("opt = torch.optim.AdamW(ps, fused=True)\nrepeat(opt.step)", 10),
    "LBFGS, which calls its closure several times": (
        "opt = torch.optim.LBFGS(ps, max_iter=4)\nrepeat(lambda: opt.step(loss))",
        10,
    ),
    "a subclass with a step of its own": (
        """
        class Mine(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {})
            def step(self):
                pass
        opt = Mine(ps)
        repeat(opt.step)
        """,
        10,
    ),
    "two optimizers, as of a GAN": (
        "a, b = torch.optim.SGD(ps, lr=0.1), torch.optim.Adam(ps)\nrepeat(lambda: (a.step(), b.step()))",
        10,
    ),
    "one optimizer with more steps than the other": (
        "a, b = torch.optim.SGD(ps, lr=0.1), torch.optim.Adam(ps)\nrepeat(lambda: (a.step(), a.step(), b.step()))",
        20,
    ),
    "accumulation over four micro-batches": (
        "opt = torch.optim.SGD(ps, lr=0.1)\nrepeat(lambda: ([loss() for _ in range(4)], opt.step()))",
        10,
    ),
    "GradScaler that skips three steps": (
        """
        opt, scaler = torch.optim.SGD(ps, lr=0.1), torch.amp.GradScaler("cpu")
        for n in range(10):
            ps[0].grad = torch.full((4,), float("inf") if n < 3 else 1.0)
            scaler.scale(torch.ones(()))
            scaler.step(opt)
            scaler.update()
        """,
        7,
    ),
    "ZeroRedundancyOptimizer, which calls an inner optimizer": (
        """
        import torch.distributed as dist
        from torch.distributed.optim import ZeroRedundancyOptimizer
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        opt = ZeroRedundancyOptimizer(ps, optimizer_class=torch.optim.SGD, lr=0.1)
        repeat(opt.step)
        """,
        10,
    ),
    "_apply_optimizer_in_backward, with an optimizer for each parameter": (
        """
        from torch.distributed.optim import _apply_optimizer_in_backward
        _apply_optimizer_in_backward(torch.optim.SGD, ps, {"lr": 0.1})
        repeat(loss)
        """,
        10,
    ),
    "torch.compile of the step": (
        """
        opt = torch.optim.SGD(ps, lr=0.1)
        repeat(torch.compile(opt.step, backend="eager"))
        """,
        10,
    ),
    "an optimizer that is none of torch's, without a backward pass": (
        """
        class Mine:
            def step(self):
                for p in ps:
                    p.data.sub_(0.1)
        repeat(Mine().step)
        """,
        None,
    ),
    "SGD by hand, by the backward pass of a tensor": ("repeat(by_hand)", 10),
    "SGD by hand, by torch.autograd.backward": (
        "repeat(lambda: torch.autograd.backward([(p * p).sum() for p in ps]))",
        10,
    ),
    "torch.autograd.grad alone": ("repeat(lambda: torch.autograd.grad((ps[0] * ps[0]).sum(), ps[0]))", None),
    "a backward pass of torch.autograd.grad's own": (
        """
        class Inner(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1.0
            @staticmethod
            def backward(ctx, grad):
                with torch.enable_grad():
                    loss()
                return grad
        repeat(lambda: torch.autograd.grad(Inner.apply(ps[0]).sum(), ps[0]))
        """,
        None,
    ),
    "reentrant checkpointing, a backward pass in a backward pass": (
        """
        from torch.utils.checkpoint import checkpoint
        layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        x = torch.ones(4, requires_grad=True)
        def step():
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=True)
            y.sum().backward()
        repeat(step)
        """,
        10,
    ),
    "backward passes that fail": (
        """
        def step():
            by_hand()
            try:
                torch.ones(4).sum().backward()
            except RuntimeError:
                pass
        repeat(step)
        """,
        10,
    ),
    "backward passes of another thread": (
        """
        import threading
        thread = threading.Thread(target=repeat, args=(by_hand,))
        thread.start()
        thread.join()
        """,
        None,
    ),
    "SGD by hand under torch.compile": (
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            repeat(torch.compile(by_hand, backend="eager"))
        assert not [each for each in caught if "get_ident" in str(each.message)], "the wrapper was compiled"
        """,
        10,
    ),
    "SGD by hand with compiled autograd": (
        """
        from torch._dynamo import compiled_autograd
        with compiled_autograd._enable(torch.compile(backend="eager")):
            repeat(by_hand)
        """,
        10,
    ),
    "an optimizer that has not stepped": (
        "opt = torch.optim.SGD(ps, lr=0.1)\nrepeat(loss)",
        None,
    ),
    "three backward passes alone, which may be a warm-up": ("for _ in range(3):\n    loss()", None),
    "an optimizer after three backward passes, which may be a warm-up": (
        "for _ in range(3):\n    loss()\nopt = torch.optim.SGD(ps, lr=0.1)\nrepeat(opt.step)",
        10,
    ),
    "an optimizer after four backward passes, with accumulation": (
        """
        for _ in range(4):
            loss()
        opt = torch.optim.SGD(ps, lr=0.1)
        repeat(lambda: ([loss() for _ in range(4)], opt.step()))
        """,
        14,
    ),
    "an optimizer, which puts torch's own function back": (
        """
        from torch.autograd import graph
        def is_own():
            return [module._engine_run_backward is own for module in (torch.autograd, graph)]
        before = is_own()
        opt = torch.optim.SGD(ps, lr=0.1)
        loss()
        if [before, is_own()] == [[False, False], [True, True]]:
            repeat(opt.step)
        """,
        10,
    ),
    "an optimizer for each iteration": ("repeat(lambda: torch.optim.SGD(ps, lr=0.1).step())", 1),
    "steps of a child that the script forks": (
        """
        opt = torch.optim.SGD(ps, lr=0.1)
        repeat(opt.step)
        if os.fork() == 0:
            repeat(opt.step)
            os._exit(0)
        os.wait()
        """,
        10,
    ),
    "a script that closes all its files": (
        "os.closerange(3, 4096)\nopt = torch.optim.SGD(ps, lr=0.1)\nrepeat(opt.step)",
        10,
    ),
}

# Forks a child for each case, as the warm process does: torch is imported, and no thread runs.
DRIVER = """
import json, os, sys, traceback
import torch, torch._dynamo
from dtj_agent.warm import observe

def run(rank, body, socket):
    own = torch.autograd._engine_run_backward
    observe.install(rank, 1, socket, "")
    ps = [torch.nn.Parameter(torch.ones(4)) for _ in range(4)]
    for p in ps:
        p.grad = torch.ones(4)
    def loss():
        total = sum((p * p).sum() for p in ps)
        total.backward()
        return total
    def by_hand():
        loss()
        with torch.no_grad():
            for p in ps:
                p.sub_(0.1 * p.grad)
                p.grad = None
    def repeat(do):
        for _ in range(10):
            do()
    exec(body, {**globals(), **locals()})

for rank, body in enumerate(json.loads(sys.argv[2])):
    if os.fork() == 0:
        code = 0
        try:
            run(rank, body, sys.argv[1])
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    assert os.wait()[1] == 0, body

# Two ranks of a group in a collective that one of them never reaches.
import time, torch.distributed as dist
def all_reduce_alone(rank):
    observe.install(rank, 1, sys.argv[1], sys.argv[3] % rank)
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[3] % "store", 2), rank=rank, world_size=2)
    print(rank, os.getpid(), flush=True)
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    time.sleep(600)
for rank in range(2):
    if os.fork() == 0:
        all_reduce_alone(rank)

# A script that uses the trainer library, and that was not forked from a warm process.
if os.fork() == 0:
    from dtj_trainer import State
    os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4])
    os.environ.update(DTJ_STACK_FILE=sys.argv[3] % 2)
    print(2, os.getpid(), flush=True)
    State()
os.wait()
sys.exit("a rank has ended")
"""


@dataclass
class Seen:
    """Holds what the agent has seen of all cases, and the ranks that stand in a collective."""

    counts: dict[int, StepCount]
    files: StackFiles
    pids: dict[int, int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Runs all cases in forks of one process, because importing torch is what costs."""
    folder = tmp_path_factory.mktemp("agent")
    reports = ReportSocket(Loop(), str(folder))
    reports.begin(1)
    files = StackFiles(str(folder / "stacks"))
    files.begin(range(3))
    bodies = json.dumps([dedent(body) for body, _ in CASES.values()])
    stack_files = str(folder / "stacks" / "stack-%s.txt")
    command = [sys.executable, "-c", DRIVER, reports.path, bodies, stack_files, str(free_port())]
    with open(folder / "output", "w") as output:
        driver = subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=output, start_new_session=True
        )
    try:

        def lines() -> list[str]:
            assert driver.poll() is None, "a case failed"
            reports.read()
            return (folder / "output").read_text().splitlines()

        found = wait_until("all ranks wait", lambda: len(lines()) == 3 and lines(), timeout=PATIENCE)
        pids = dict(tuple(map(int, line.split())) for line in found)
        yield Seen(dict(reports.counts), files, pids)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        reports.close()


@pytest.mark.parametrize(("case", "expected"), [(case, count) for case, (_, count) in CASES.items()], ids=CASES)
def test_agent_counts_the_steps_of_any_optimizer(seen: Seen, case: str, expected: int | None) -> None:
    found = seen.counts.get(list(CASES).index(case))
    assert (found and found.steps) == expected
    assert found is None or found.first <= found.last <= time.monotonic()


def stack_with(seen: Seen, rank: int, line: str) -> dict[int, str]:
    """Returns the stacks of all ranks once that of `rank` shows this line."""

    def stacks() -> dict[int, str] | None:
        seen.files.request(seen.pids)
        wait_until("the stacks are written", lambda: not seen.files.pending(), timeout=PATIENCE)
        found = seen.files.read()
        return found if line in found.get(rank, "") else None

    return wait_until(f"rank {rank} is where it should be", stacks, timeout=PATIENCE)


def test_rank_in_a_collective_dumps_its_stack(seen: Seen) -> None:
    found = stack_with(seen, 0, "in all_reduce\n")
    assert "in all_reduce_alone" in found[1]
    assert "in all_reduce\n" not in found[1]


def test_trainer_that_waits_for_its_group_dumps_its_stack(seen: Seen) -> None:
    assert "rendezvous.py" in stack_with(seen, 2, "in join")[2]
