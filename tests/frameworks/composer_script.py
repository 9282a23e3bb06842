"""A training as users of MosaicML Composer write it: nothing of ours is imported, and nothing is caught.

composer_script.py FOLDER [autoresume]

It makes STEPS optimizer steps, saves every sixth in FOLDER/saved, and resumes from the newest by `load_path` or by
`autoresume`. Rank 0 writes its weights' sum, its step and the step that it resumed from to FOLDER/result.json.
Variables change what is around the training:

KILL: the rank that kills itself at step KILL_AT, unless it has resumed.
FAIL: the rank that raises an error at that step of each attempt.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from composer import Callback, Logger, State, Trainer
from composer.models import ComposerClassifier
from composer.utils import dist
from torch.utils.data import DataLoader, Dataset

STEPS, EVERY, KILL_AT = int(os.environ.get("STEPS") or 24), 6, 15


class Rows(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(4, generator=torch.Generator().manual_seed(index)), index % 2


class Disturb(Callback):
    """Disturbs the training at one step, and remembers where it began."""

    resumed = 0

    def fit_start(self, state: State, logger: Logger) -> None:
        self.resumed = state.timestamp.batch.value

    def batch_end(self, state: State, logger: Logger) -> None:
        rank = str(dist.get_global_rank())
        if state.timestamp.batch == KILL_AT:
            if os.environ.get("KILL") == rank and not self.resumed:
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ.get("FAIL") == rank:
                raise ValueError("planted in the training")


def main(folder: Path, autoresume: bool) -> None:
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    rows, disturb, newest = Rows(), Disturb(), folder / "saved" / "latest-rank0.pt"
    trainer = Trainer(
        model=ComposerClassifier(net, num_classes=2),
        optimizers=torch.optim.AdamW(net.parameters(), lr=0.01),
        train_dataloader=DataLoader(rows, batch_size=2, sampler=dist.get_sampler(rows, shuffle=True)),
        max_duration=f"{STEPS}ba",
        device="cpu",
        seed=7,
        run_name="small",
        save_folder=str(folder / "saved"),
        save_interval=f"{EVERY}ba",
        save_overwrite=not autoresume,
        autoresume=autoresume,
        load_path=str(newest) if newest.exists() and not autoresume else None,
        callbacks=[disturb],
        progress_bar=False,
    )
    trainer.fit()
    if dist.get_global_rank() == 0:
        total = sum(parameter.detach().double().sum().item() for parameter in net.parameters())
        found = {"sum": total, "step": trainer.state.timestamp.batch.value, "resumed": disturb.resumed}
        (folder / "result.json").write_text(json.dumps(found))
    trainer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["autoresume"])
