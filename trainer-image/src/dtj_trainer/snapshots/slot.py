"""One snapshot in shared memory: a file that is valid as a whole, or not at all.

    0      header: magic, checksum, length, JSON; written last, and wiped before the content changes
    4096   the private part: manifest, state that only this rank has, buffers
    ...    the data: parameters and the optimizer's tensors, which replicas share

A process that is killed at any instant leaves a file with a header for exactly this content, or
without one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

log = logging.getLogger(__name__)
HEADER_BYTES = 4096
ALIGNMENT = 8192
"""Parts end at a multiple of it, so that `digest` sees whole rows."""
_MAGIC = b"dtjsnap1"
_PREFIX = struct.Struct("<8sII")
_ROW = ALIGNMENT // 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Describes a snapshot, and how its bytes are checked."""

    job: str
    """The job's uid: a namesake that was created later is another job."""
    state: int
    """Number of the State in the process, from 1: a script may train several models."""
    rank: int
    world_size: int
    attempt: int
    started: int
    """The step at which the attempt began; with `attempt` the line that the snapshot belongs to."""
    step: int
    layout: str
    """Digest of the names, types and shapes of the state that it fits."""
    whole_layout: str
    """Digest of the whole tensors, alike on all ranks; "" if another world size can't divide them."""
    shard: int
    shards: int
    """The number of this rank's shard, and how many there are."""
    manifest_bytes: int
    blob_bytes: int
    private_bytes: int
    data_bytes: int
    private_digest: str
    data_digest: str

    def dump(self) -> bytes:
        """Returns the header as it is in the file."""
        text = json.dumps(asdict(self), separators=(",", ":")).encode()
        if len(text) > HEADER_BYTES - _PREFIX.size:
            raise ValueError(f"a header of {len(text)} bytes does not fit")
        return (_PREFIX.pack(_MAGIC, zlib.crc32(text), len(text)) + text).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def parse(cls, raw: bytes) -> Header | None:
        """Returns the header in `raw`; None if there is no whole one."""
        if len(raw) < HEADER_BYTES:
            return None
        magic, checksum, size = _PREFIX.unpack_from(raw)
        text = raw[_PREFIX.size : _PREFIX.size + size]
        if magic != _MAGIC or len(text) != size or zlib.crc32(text) != checksum:
            return None
        try:
            body = json.loads(text)
            header = cls(**{field.name: body[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None
        sizes = (header.private_bytes, header.data_bytes, header.manifest_bytes, header.blob_bytes)
        whole = all(isinstance(size, int) and size >= 0 for size in sizes)
        aligned = whole and not (header.private_bytes % ALIGNMENT or header.data_bytes % ALIGNMENT)
        return header if aligned and header.manifest_bytes + header.blob_bytes <= header.private_bytes else None


class Slot:
    """A file in shared memory, mapped; its pages are reserved, so a full memory is an error and no SIGBUS."""

    def __init__(self, path: Path, size: int) -> None:
        """Makes the file again, even if it exists. Raises OSError if there is no room."""
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        self.path = path
        self.size = size
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def put(self, at: int, content: bytes) -> None:
        """Writes bytes."""
        self._map[at : at + len(content)] = content

    def wipe(self) -> None:
        """Makes the file invalid, before its content changes."""
        self._map[: len(_MAGIC)] = bytes(len(_MAGIC))

    def commit(self, header: Header) -> None:
        """Makes the file valid: its content is complete."""
        raw = header.dump()
        # The magic comes last: a header that is half written is none.
        self._map[len(_MAGIC) : HEADER_BYTES] = raw[len(_MAGIC) :]
        self._map[: len(_MAGIC)] = raw[: len(_MAGIC)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A valid snapshot as it is read after a restart."""

    path: Path
    header: Header
    bytes: torch.Tensor
    """The whole file, mapped."""
    data_is_here: bool
    """False: a partner's copy of the private part alone."""

    @property
    def private(self) -> torch.Tensor:
        """The private part."""
        return self.bytes[HEADER_BYTES : HEADER_BYTES + self.header.private_bytes]

    @property
    def data(self) -> torch.Tensor:
        """The data."""
        begin = HEADER_BYTES + self.header.private_bytes
        return self.bytes[begin : begin + self.header.data_bytes]


def read(path: Path) -> Snapshot | None:
    """Returns the snapshot in a file; None if it is torn, damaged or gone."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                return None
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    header = Header.parse(mapped[:HEADER_BYTES])
    if header is None or size < HEADER_BYTES + header.private_bytes:
        return None
    whole = size >= HEADER_BYTES + header.private_bytes + header.data_bytes
    snapshot = Snapshot(path, header, torch.frombuffer(mapped, dtype=torch.uint8), whole)
    if digest(snapshot.private) != header.private_digest:
        return None
    return snapshot if not whole or digest(snapshot.data) == header.data_digest else None


def read_any(path: Path) -> Snapshot | None:
    """Returns the snapshot in a file; None for any error, since other ranks wait for this rank's answer."""
    try:
        return read(path)
    except Exception as e:  # noqa: BLE001 - one rank's error is its vote against this file
        log.warning("%s can't be read: %s: %s", path, type(e).__name__, e)
        return None


def aligned(size: int) -> int:
    """Returns `size`, rounded up to whole rows."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def digest(content: torch.Tensor) -> str:
    """Returns a digest of whole rows of bytes, at the speed of reading them.

    SHA-256 of the sums of 1024 columns of 64-bit words: any changed word shows, and two versions
    mixed at random do. A forger could write the header too.
    """
    sums = content.view(torch.int64).view(-1, _ROW).sum(0)
    return hashlib.sha256(sums.numpy().tobytes()).hexdigest()[:32]
