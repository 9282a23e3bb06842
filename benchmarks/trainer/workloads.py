"""The workloads of the benchmark: a small GPT and an MLP, as `dtj bench` has them."""

from __future__ import annotations

from dtj_trainer.measure.bench.workloads import mlp, small_gpt

GPT = small_gpt(steps=40)
"""0.8 M parameters: a step takes some tens of milliseconds on one core, so that the overhead of a library shows."""
MLP_WIDTH = 1774
MLP = mlp(MLP_WIDTH, steps=12)
"""12.6 M parameters: a step sends 50 MB of gradients, so that bucketing and overlap show."""
