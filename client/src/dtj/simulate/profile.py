"""The profile of one rank: what its step takes without other ranks, and which gradients it sends. Pure.

`python -m dtj_trainer.measure profile` measures one. A file by hand needs only samples, seconds, gradient_bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dtj.errors import InputError

VERSION = 1
BUCKET_BYTES = 25 * 1024 * 1024
"""DistributedDataParallel's default."""
SECTIONS = ("data", "forward", "backward", "optimizer")
EXAMPLE = (
    '{"samples": 32, "seconds": {"data": 0, "forward": 0.03, "backward": 0.06, "optimizer": 0.01}, '
    '"gradient_bytes": 100000000}'
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Gradients that are ready together: of one parameter, or of a bucket."""

    size: float
    """Bytes."""
    ready: float
    """Seconds since the last backward pass of the step began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One rank's step."""

    samples: float
    """Samples of this rank in a step."""
    data: float
    """Seconds that a step waits for its data."""
    forward: float
    """Seconds of all forward passes of a step."""
    backward: float
    """Seconds of all backward passes of a step."""
    optimizer: float
    """Seconds of the optimizer's step, clipping included."""
    gradients: tuple[Piece, ...]
    """By parameter, in the order in which a backward pass finishes them."""
    bucket_bytes: float = BUCKET_BYTES
    """A bucket leaves once it has this many bytes."""
    micro_batches: int = 1
    """Backward passes of a step. Only the last one sends."""
    spread: float = 0.0
    """Standard deviation of the seconds of this rank's own work in a step."""
    measured: str = ""
    """When and on what it was measured. Empty: not measured."""

    @property
    def seconds(self) -> float:
        """Seconds of a step without other ranks."""
        return self.data + self.forward + self.backward + self.optimizer

    @property
    def gradient_bytes(self) -> float:
        """Bytes of all gradients."""
        return sum(piece.size for piece in self.gradients)

    @property
    def last_backward(self) -> float:
        """Seconds of the backward pass that sends."""
        return self.backward / self.micro_batches

    def with_samples(self, samples: float) -> Profile:
        """Returns the profile of a step with other samples: all but the optimizer takes time in proportion."""
        factor = samples / self.samples
        return replace(
            self,
            samples=samples,
            data=self.data * factor,
            forward=self.forward * factor,
            backward=self.backward * factor,
            gradients=tuple(Piece(piece.size, piece.ready * factor) for piece in self.gradients),
            spread=self.spread * factor,
        )

    def buckets(self) -> list[Piece]:
        """Returns the buckets in the order in which they leave, as DistributedDataParallel fills them.

        A bucket is closed by the gradient with which it reaches `bucket_bytes`. The bucket is ready with its last
        gradient.
        """
        out: list[Piece] = []
        size = ready = 0.0
        for piece in self.gradients:
            size, ready = size + piece.size, max(ready, piece.ready)
            if size >= self.bucket_bytes:
                out.append(Piece(size, ready))
                size = 0.0
        return [*out, Piece(size, ready)] if size else out


def even(total: float, bucket_bytes: float, backward: float) -> tuple[Piece, ...]:
    """Returns gradients of `total` bytes in buckets that a backward pass finishes at an even pace."""
    count = max(1, math.ceil(total / bucket_bytes))
    return tuple(Piece(total / count, backward * (at + 1) / count) for at in range(count))


def parse(text: str, name: str) -> Profile:
    """Parses profile.json. Raises InputError that names the file and the field."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"--profile {name}: no JSON: {error}; write such as {EXAMPLE}") from error
    if not isinstance(found, dict):
        raise InputError(f"--profile {name}: write an object, such as {EXAMPLE}")
    if found.get("version", VERSION) != VERSION:
        raise InputError(f"--profile {name}: version {found['version']!r}: this dtj reads version {VERSION}")
    times = found.get("seconds")
    if not isinstance(times, dict):
        raise InputError(f"--profile {name}: seconds: write the seconds of {', '.join(SECTIONS)}, such as {EXAMPLE}")
    sections = {key: _number(times, key, f"{name}: seconds.{key}", least=0.0) for key in SECTIONS}
    if not sum(sections.values()):
        raise InputError(f"--profile {name}: seconds: write at least one number above 0, such as {EXAMPLE}")
    micro_batches = int(_number(found, "micro_batches", f"{name}: micro_batches", default=1.0, least=1.0))
    bucket_bytes = _number(found, "bucket_bytes", f"{name}: bucket_bytes", default=float(BUCKET_BYTES), least=1.0)
    return Profile(
        samples=_number(found, "samples", f"{name}: samples", least=1e-9),
        **sections,
        gradients=_gradients(found, name, bucket_bytes, sections["backward"] / micro_batches),
        bucket_bytes=bucket_bytes,
        micro_batches=micro_batches,
        spread=_number(found, "spread_seconds", f"{name}: spread_seconds", default=0.0, least=0.0),
        measured=str(found.get("measured") or ""),
    )


def _gradients(found: Mapping[str, Any], name: str, bucket_bytes: float, backward: float) -> tuple[Piece, ...]:
    given = found.get("gradients")
    if given is None:
        return even(_number(found, "gradient_bytes", f"{name}: gradient_bytes", least=1.0), bucket_bytes, backward)
    pairs = isinstance(given, list) and all(isinstance(one, list) and len(one) == 2 for one in given)
    if not pairs or not given:
        raise InputError(
            f"--profile {name}: gradients: write a list of [bytes, seconds since the backward pass began], or "
            "gradient_bytes: with their sum"
        )
    return tuple(
        Piece(
            _number(one, 0, f"{name}: gradients[{at}][0]", least=0.0),
            min(_number(one, 1, f"{name}: gradients[{at}][1]", least=0.0), backward),
        )
        for at, one in enumerate(given)
    )


def _number(
    tree: Mapping[str, Any] | Sequence[Any], key: Any, name: str, *, least: float, default: float | None = None
) -> float:
    value = tree.get(key, default) if isinstance(tree, Mapping) else tree[key]
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or value < least:
        bound = f", {least:g} or more" if least >= 1 else " above 0" if least else ", 0 or more"
        raise InputError(f"--profile {name}={value!r}: write a number{bound}")
    return float(value)
