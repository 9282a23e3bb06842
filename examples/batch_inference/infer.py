"""Batch inference: ranks divide the inputs into shards, and a shard that is done is never computed again.

torchrun --nproc-per-node 2 infer.py --model model.safetensors --out predictions

Ranks exchange nothing, so there is no process group. A shard's file is whole or absent, and its name does not depend
on the rank or on the number of ranks: another attempt, with other ranks too, skips what is done.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dtj_trainer import rank
from dtj_trainer.examples import digits

SHARD = 64  # inputs in a shard

flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
flags.add_argument("--model", type=Path, required=True, help="weights that `dtj export` wrote")
flags.add_argument("--out", type=Path, default=Path(os.environ.get("DTJ_CHECKPOINT_DIR", "predictions")))
given = flags.parse_args()
me, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

model = digits.mlp()
model.load_state_dict(load_file(given.model))
model.eval()
inputs = torch.cat([data.tensors[0] for data in digits.load()])  # yours: read the shard's rows alone
shards = inputs.split(SHARD)

# Other weights have another folder, so that their outputs do not mix with these.
folder = given.out / hashlib.sha256(given.model.read_bytes()).hexdigest()[:12]
folder.mkdir(parents=True, exist_ok=True)

for number in range(me, len(shards), world):
    path = folder / f"shard-{number:05d}.safetensors"
    if not path.exists():
        with torch.inference_mode():
            logits = model(shards[number])
        part = folder / f".part-{number:05d}"
        save_file({"logits": logits, "labels": logits.argmax(1)}, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # the content is on the volume before the name is
        part.rename(path)
        print(f"computed {path.name}", flush=True)
        time.sleep(float(os.environ.get("SHARD_SECONDS", 0)))
    rank.report(len(list(folder.glob("shard-*"))), total=len(shards))
