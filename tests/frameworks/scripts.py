"""Trainings as people write them with each framework: nothing of ours is imported, and nothing is caught.

scripts.py FRAMEWORK FOLDER

Each makes STEPS optimizer steps on two ranks, saves by the framework's own means, resumes from its
newest checkpoint, and rank 0 writes its weights' sum and its step to FOLDER/result.json. With KILL=1
in the environment, rank 1 kills itself at step KILL_AT of the first attempt.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

STEPS, KILL_AT = 24, 15
RANK = int(os.environ["RANK"])


def maybe_die(step: int) -> None:
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if os.environ.get("KILL") == "1" and first and step == KILL_AT and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)


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
    row = rows[(2 * step + RANK) % len(rows)]
    optimizer.zero_grad()
    model(row["x"][None], row["labels"][None])["loss"].backward()
    optimizer.step()


def plain(folder: Path) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model, saved, step = DistributedDataParallel(Net()), folder / "saved.pt", 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    rows = Rows()
    while step < STEPS:
        take_step(model, optimizer, rows, step)
        step += 1
        if step % 6 == 0 and RANK == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
        maybe_die(step)
    finish(folder, model.module, step)
    dist.destroy_process_group()


def fsdp2(folder: Path) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model, step = Net(), 0
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saves = sorted(folder.glob("saved-*/.metadata"), key=lambda path: int(path.parent.name.partition("-")[2]))
    if saves:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=saves[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = int(saves[-1].parent.name.partition("-")[2])
    rows = Rows()
    while step < STEPS:
        take_step(model, optimizer, rows, step)
        step += 1
        if step % 6 == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"saved-{step}")
        maybe_die(step)
    whole = Net()
    whole.load_state_dict({name: value.full_tensor() for name, value in model.state_dict().items()})
    finish(folder, whole, step)
    dist.destroy_process_group()


def deepspeed(folder: Path) -> None:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    model = Net()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    step = 0
    if (folder / "latest").exists():
        _, state = engine.load_checkpoint(str(folder))
        step = state["step"]
    rows = Rows()
    while step < STEPS:
        row = rows[(2 * step + RANK) % len(rows)]
        engine.backward(engine(row["x"][None], row["labels"][None])["loss"])
        engine.step()
        step += 1
        if step % 6 == 0:
            engine.save_checkpoint(str(folder), client_state={"step": step})
        maybe_die(step)
    finish(folder, engine.module, step)
    torch.distributed.destroy_process_group()


def transformers(folder: Path) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Dies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            maybe_die(state.global_step)

    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=2, save_steps=6, use_cpu=True,
        disable_tqdm=True, seed=7, ddp_find_unused_parameters=False,
    )  # fmt: skip
    trainer = Trainer(Net(), arguments, train_dataset=Rows(), callbacks=[Dies()])
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    finish(folder, trainer.model, trainer.state.global_step)


def accelerate(folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    saved, step = folder / "saved", 0
    done = sorted(saved.glob("*/whole"), key=lambda path: int(path.parent.name))
    if done:
        accelerator.load_state(str(done[-1].parent))
        step = int(done[-1].parent.name)
    while step < STEPS:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(batch["x"], batch["labels"])["loss"])
            optimizer.step()
            step += 1
            maybe_die(step)
        accelerator.save_state(str(saved / str(step)))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (saved / str(step) / "whole").touch()
    finish(folder, accelerator.unwrap_model(model), step)
    accelerator.end_training()


def lightning(folder: Path) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.net(batch["x"], batch["labels"])["loss"]

        def on_train_batch_end(self, *more: Any) -> None:
            maybe_die(self.trainer.global_step)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=6)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, callbacks=[saves], logger=False,
        enable_progress_bar=False, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    trainer.fit(module, loader, ckpt_path="last" if (folder / "last.ckpt").exists() else None)
    finish(folder, module.net, trainer.global_step)


if __name__ == "__main__":
    where = Path(sys.argv[2])
    where.mkdir(parents=True, exist_ok=True)
    globals()[sys.argv[1]](where)
