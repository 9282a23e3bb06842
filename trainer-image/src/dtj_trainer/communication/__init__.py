"""Sends fewer bytes of gradients: casts, low rank, sparse and quantized, each with exact error feedback.

`GradientQueue` is what a strategy of data parallelism sends its gradients with.
"""

from __future__ import annotations

from dtj_trainer.communication.config import CommunicationConfig
from dtj_trainer.communication.queue import CASTS, GradientQueue, make_queue

__all__ = ["CASTS", "CommunicationConfig", "GradientQueue", "make_queue"]
