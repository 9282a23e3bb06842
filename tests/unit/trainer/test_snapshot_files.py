"""A snapshot's file is valid as a whole or not at all, and gives back every number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from dtj_trainer.errors import SnapshotError
from dtj_trainer.snapshots import memory, room
from dtj_trainer.snapshots.choice import Volume
from dtj_trainer.snapshots.contents import LiveState
from dtj_trainer.snapshots.image import Image, fill, unpack
from dtj_trainer.snapshots.slot import ALIGNMENT, HEADER_BYTES, Header, Slot, digest, read

pytestmark = pytest.mark.torch


def header(private: torch.Tensor, data: torch.Tensor, step: int = 7) -> Header:
    return Header(
        job="uid", state=1, rank=0, world_size=2, attempt=3, started=5, step=step, layout="layout",
        whole_layout="whole", shard=0, shards=2, manifest_bytes=10, blob_bytes=20, private_bytes=private.numel(),
        data_bytes=data.numel(), private_digest=digest(private), data_digest=digest(data),
    )  # fmt: skip


def written(path: Path, value: int = 1, step: int = 7) -> Slot:
    """Makes a valid snapshot in which every byte of the content is `value`."""
    slot = Slot(path, HEADER_BYTES + 3 * ALIGNMENT)
    write(slot, value, step)
    return slot


def write(slot: Slot, value: int, step: int) -> None:
    slot.wipe()
    slot.bytes[HEADER_BYTES:].fill_(value)
    private = slot.bytes[HEADER_BYTES : HEADER_BYTES + ALIGNMENT]
    slot.commit(header(private, slot.bytes[HEADER_BYTES + ALIGNMENT :], step))


def test_committed_snapshot_reads_back(tmp_path: Path) -> None:
    slot = written(tmp_path / "slot")
    found = read(slot.path)
    assert found is not None
    assert (found.header.step, found.header.attempt, found.data_is_here) == (7, 3, True)
    assert found.data.numel() == 2 * ALIGNMENT


@pytest.mark.parametrize(
    "at", [0, 7, 8, 12, 16, 40, 200, HEADER_BYTES, HEADER_BYTES + ALIGNMENT - 1, HEADER_BYTES + ALIGNMENT, -1]
)
def test_changed_byte_of_each_kind_makes_the_snapshot_invalid(tmp_path: Path, at: int) -> None:
    path = written(tmp_path / "slot").path
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert read(path) is None


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + ALIGNMENT - 1])
def test_short_file_is_no_snapshot(tmp_path: Path, size: int) -> None:
    path = written(tmp_path / "slot").path
    os.truncate(path, size)
    assert read(path) is None


def test_private_part_alone_is_a_partners_copy(tmp_path: Path) -> None:
    path = written(tmp_path / "slot").path
    os.truncate(path, HEADER_BYTES + ALIGNMENT)
    found = read(path)
    assert found is not None
    assert not found.data_is_here


def test_write_killed_at_each_stage_leaves_old_new_or_nothing(tmp_path: Path) -> None:
    """A child writes step 8 over step 7 and ends, without clean-up, after the given number of stages."""
    for stages in range(5):
        slot = written(tmp_path / f"slot-{stages}")
        pid = os.fork()
        if pid == 0:
            content = slot.bytes[HEADER_BYTES:]
            private, data = content[:ALIGNMENT], content[ALIGNMENT:]
            steps = [
                slot.wipe,
                lambda content=content: content[: ALIGNMENT + 5].fill_(2),
                lambda content=content: content.fill_(2),
                lambda slot=slot, private=private, data=data: slot.commit(header(private, data, 8)),
            ]
            for stage in steps[:stages]:
                stage()
            os._exit(0)
        os.waitpid(pid, 0)
        found = read(slot.path)
        assert (found.header.step if found else None) == {0: 7, 4: 8}.get(stages), f"after {stages} stages"


class Sampled:
    """A part with a tensor, as a sampler of the user's own may be."""

    def __init__(self, value: int) -> None:
        self.order = torch.arange(value)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"order": self.order}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.order = state["order"]


def parts(seed: int, steps: int, kind: str) -> dict[str, object]:
    """Trains a model with half-precision weights and running statistics for some steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))
    parameters = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}]
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model[2](model[1](model[0](torch.randn(3, 4))).to(torch.bfloat16)).float().square().mean().backward()
        optimizer.step()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5 if steps else 0.9)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": Sampled(seed)}


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_state_comes_back_to_the_bit_with_its_random_numbers(tmp_path: Path, kind: str) -> None:
    saved = parts(3, 2, kind)
    live = LiveState(saved)
    private, data = live.tensors()
    blob = live.blob()
    drawn = torch.rand(3)
    image = Image.of(live.keys(private, data), len(blob))
    slot = Slot(tmp_path / "slot", image.size)
    with torch.no_grad():
        fill(slot, image.views(slot.bytes), image, [t for _, t in (*private, *data)], blob)
    content = slot.bytes[HEADER_BYTES:]
    fresh = parts(5, 0, kind)
    assert LiveState(fresh).layout() == live.layout(), "known before the first step"
    LiveState(fresh).restore(
        *unpack(content[: image.private_bytes], content[image.private_bytes :], len(image.manifest), len(blob))
    )
    assert torch.equal(torch.rand(3), drawn)
    wanted, found = saved["optimizer"].state_dict(), fresh["optimizer"].state_dict()  # type: ignore[attr-defined]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    theirs, mine = saved["model"].state_dict(), fresh["model"].state_dict()  # type: ignore[attr-defined]
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert fresh["scheduler"].state_dict() == saved["scheduler"].state_dict()  # type: ignore[attr-defined]
    assert torch.equal(fresh["sampler"].order, saved["sampler"].order)  # type: ignore[attr-defined]


def test_another_model_optimizer_or_part_has_another_layout() -> None:
    def layout(**more: object) -> str:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        return LiveState({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)} | more).layout()

    one = layout()
    other = nn.Linear(4, 3)
    assert one == layout()
    assert one != layout(model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    assert one != layout(sampler=Sampled(3))


def test_manifest_that_points_outside_of_the_file_is_rejected() -> None:
    content = torch.zeros(ALIGNMENT, dtype=torch.uint8)
    text = b'[["model.w", "float32", [4096], "cpu", false, [4096], -1, 8192]]'
    content[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with pytest.raises(SnapshotError, match="outside"):
        unpack(content, content, len(text), 0)


def test_file_without_room_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space|too large"):
        Slot(Path("/dev/shm") / f"dtj-test-{os.getpid()}", 1 << 50)
    assert not (Path("/dev/shm") / f"dtj-test-{os.getpid()}").exists()


def test_page_cache_of_a_container_counts_as_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 300000\nactive_file 100000\nshmem 7\n")
    assert room.container_bytes(tmp_path, tmp_path / "none") == 750_000 - 900_000 + 400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert room.container_bytes(tmp_path, tmp_path / "none") > 1 << 60


def test_snapshot_that_does_not_load_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later attempt would choose it again, although the volume has a checkpoint."""
    calls = []

    class Restore:
        is_empty = False

        def __init__(self, *_: object) -> None:
            pass

        def choose(self, volume: Volume) -> object:
            return volume

        def load(self, choice: object) -> bool:
            raise SnapshotError("does not load")

        def forget(self) -> None:
            calls.append("forget")

    monkeypatch.setattr(memory, "Restore", Restore)
    snapshots = object.__new__(memory.MemorySnapshots)
    snapshots._enabled, snapshots._place, snapshots._group, snapshots._live = True, None, None, None  # type: ignore[assignment]
    with pytest.raises(SnapshotError):
        snapshots.load(lambda verified: Volume(step=3, attempt=1))
    assert calls == ["forget"]
