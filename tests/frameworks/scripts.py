"""Trainings as people write them with each framework: nothing of ours is imported, and nothing is caught.

scripts.py FRAMEWORK [FOLDER]

Each makes STEPS optimizer steps, saves every sixth by the framework's own means, and resumes from its newest
checkpoint. Rank 0 writes its weights' sum and its step to FOLDER/result.json; FOLDER is DTJ_CHECKPOINT_DIR if it is
omitted. Variables change what is around the training:

KILL=1: rank 1 kills itself at step KILL_AT of the first attempt.
FAIL=1: rank 1 raises an error at that step of each attempt.
PAUSE: seconds of sleep after each step.
TIMES: a folder for the moments of each rank and attempt, in the format of benchmarks/recovery/logbook.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

STEPS, KILL_AT = int(os.environ.get("STEPS") or 24), 15
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PODS, ATTEMPT = int(os.environ["GROUP_WORLD_SIZE"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
LOCAL_WORLD = int(os.environ["LOCAL_WORLD_SIZE"])


def note(what: str, *details: object) -> None:
    """Writes a moment of this rank, with a clock that all processes of a machine share."""
    if times := os.environ.get("TIMES"):
        Path(times).mkdir(parents=True, exist_ok=True)
        with open(f"{times}/{RANK}-{ATTEMPT}", "a") as file:
            print(what, f"{time.monotonic():.6f}", *details, file=file)


def after_step(step: int) -> None:
    note("step", step)
    time.sleep(float(os.environ.get("PAUSE") or 0))
    if os.environ.get("KILL") == "1" and ATTEMPT == 0 and step == KILL_AT and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("FAIL") == "1" and step == KILL_AT and RANK == 1:
        raise ValueError("planted in the training")


def finish(folder: Path, model: torch.nn.Module, step: int) -> None:
    if RANK == 0:
        total = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
        (folder / "result.json").write_text(json.dumps({"sum": total, "step": step}))


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(4, generator=generator), "labels": torch.tensor(index % 2)}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: Rows, step: int) -> None:
    """Trains on this rank's row of the step."""
    row = rows[(WORLD * step + RANK) % len(rows)]
    optimizer.zero_grad()
    model(row["x"][None], row["labels"][None])["loss"].backward()
    optimizer.step()


def plain(folder: Path) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    note("imported")
    dist.init_process_group("gloo")
    note("joined")
    model, saved, step = DistributedDataParallel(Net()), folder / "saved.pt", 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    note("built")
    if saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    note("loaded")
    rows = Rows()
    while step < STEPS:
        take_step(model, optimizer, rows, step)
        step += 1
        if step % 6 == 0 and RANK == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
        after_step(step)
    finish(folder, model.module, step)
    dist.destroy_process_group()


def gpt(folder: Path) -> None:
    """Trains a small GPT as nanoGPT does: accumulation, clipping, cosine schedule, one file for its checkpoint."""
    import math
    from contextlib import nullcontext

    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    note("imported")
    width, heads, block, letters, accumulation = 64, 4, 32, 65, 2

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.attention, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = (len(x), -1, heads, width // heads)
            q, k, v = (part.view(size).transpose(1, 2) for part in self.attention(self.before(x)).split(width, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.between(x))))

    class Gpt(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = torch.nn.Embedding(letters, width), torch.nn.Embedding(block, width)
            self.blocks = torch.nn.Sequential(Block(), Block())
            self.last, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, letters, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            hidden = self.tokens(x) + self.places(torch.arange(x.shape[1]))
            logits = self.head(self.last(self.blocks(hidden)))
            return F.cross_entropy(logits.view(-1, letters), y.view(-1))

    dist.init_process_group("gloo")
    note("joined")
    torch.manual_seed(1337)
    text = torch.randint(letters, (4096,), generator=torch.Generator().manual_seed(1337))
    model, saved, step = Gpt(), folder / "ckpt.pt", 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    wrapped = DistributedDataParallel(model)
    note("built")
    if saved.exists():
        checkpoint = torch.load(saved, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["iter_num"]
    note("loaded")
    while step < STEPS:
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * min(1, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * min(1, step / STEPS)))
        for micro in range(accumulation):
            draw = torch.Generator().manual_seed((step * accumulation + micro) * WORLD + RANK)
            places = torch.randint(len(text) - block - 1, (4,), generator=draw)
            x = torch.stack([text[i : i + block] for i in places])
            y = torch.stack([text[i + 1 : i + 1 + block] for i in places])
            with nullcontext() if micro == accumulation - 1 else wrapped.no_sync():
                (wrapped(x, y) / accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 6 == 0 and RANK == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": step}
            torch.save(state, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
        after_step(step)
    finish(folder, model, step)
    dist.destroy_process_group()


def fsdp2(folder: Path) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    note("imported")
    dist.init_process_group("gloo")
    note("joined")
    model, step = Net(), 0
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    note("built")
    saves = sorted(folder.glob("saved-*/.metadata"), key=lambda path: int(path.parent.name.partition("-")[2]))
    if saves:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=saves[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = int(saves[-1].parent.name.partition("-")[2])
    note("loaded")
    rows = Rows()
    while step < STEPS:
        take_step(model, optimizer, rows, step)
        step += 1
        if step % 6 == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"saved-{step}")
        after_step(step)
    whole = Net()
    whole.load_state_dict({name: value.full_tensor() for name, value in model.state_dict().items()})
    finish(folder, whole, step)
    dist.destroy_process_group()


def deepspeed(folder: Path) -> None:
    import deepspeed

    note("imported")
    deepspeed.init_distributed(dist_backend="gloo")
    note("joined")
    model = Net()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    note("built")
    step = 0
    if (folder / "latest").exists():
        _, state = engine.load_checkpoint(str(folder))
        step = state["step"]
    note("loaded")
    rows = Rows()
    while step < STEPS:
        row = rows[(WORLD * step + RANK) % len(rows)]
        engine.backward(engine(row["x"][None], row["labels"][None])["loss"])
        engine.step()
        step += 1
        if step % 6 == 0:
            engine.save_checkpoint(str(folder), client_state={"step": step})
        after_step(step)
    finish(folder, engine.module, step)
    torch.distributed.destroy_process_group()


def transformers(folder: Path) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    note("imported")

    class Notes(TrainerCallback):
        def on_train_begin(self, *state: Any, **more: Any) -> None:
            note("loaded")

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            after_step(state.global_step)

    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=2, save_steps=6, use_cpu=True,
        disable_tqdm=True, seed=7, ddp_find_unused_parameters=False,
    )  # fmt: skip
    note("joined")
    trainer = Trainer(Net(), arguments, train_dataset=Rows(), callbacks=[Notes()])
    note("built")
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    finish(folder, trainer.model, trainer.state.global_step)


def accelerate(folder: Path) -> None:
    from accelerate import Accelerator

    note("imported")
    accelerator = Accelerator(cpu=True)
    note("joined")
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    note("built")
    saved, step = folder / "saved", 0
    done = sorted(saved.glob("*/whole"), key=lambda path: int(path.parent.name))
    if done:
        accelerator.load_state(str(done[-1].parent))
        step = int(done[-1].parent.name)
    note("loaded")
    while step < STEPS:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(batch["x"], batch["labels"])["loss"])
            optimizer.step()
            step += 1
            after_step(step)
        accelerator.save_state(str(saved / str(step)))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (saved / str(step) / "whole").touch()
    finish(folder, accelerator.unwrap_model(model), step)
    accelerator.end_training()


def lightning(folder: Path) -> None:
    import lightning

    note("imported")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.net(batch["x"], batch["labels"])["loss"]

        def on_train_start(self) -> None:
            note("loaded")

        def on_train_batch_end(self, *more: Any) -> None:
            after_step(self.trainer.global_step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=6)
    trainer = lightning.Trainer(
        accelerator="cpu", num_nodes=PODS, devices=LOCAL_WORLD, strategy="ddp", max_steps=STEPS, callbacks=[saves],
        logger=False, enable_progress_bar=False, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    note("built")
    trainer.fit(module, loader, ckpt_path="last" if (folder / "last.ckpt").exists() else None)
    finish(folder, module.net, trainer.global_step)


if __name__ == "__main__":
    note("begin", ATTEMPT, RANK, WORLD, os.getpid())
    where = Path(sys.argv[2] if len(sys.argv) > 2 else os.environ["DTJ_CHECKPOINT_DIR"])
    where.mkdir(parents=True, exist_ok=True)
    globals()[sys.argv[1]](where)
