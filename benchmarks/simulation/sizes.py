"""The model whose computation is a pause, in numbers. A rank of another framework than torch reads them too."""

from __future__ import annotations

WIDTH, LAYERS, SAMPLES = 512, 8, 4
"""8.4 MB of gradients; samples of a rank."""
FORWARD, BACKWARD = 0.002, 0.004
"""Seconds of a layer's pause in each pass."""
BUCKET_MB = 2.0
SETTLING, STEPS = 10, 20
"""Steps before those that are timed, and those of a trial."""
