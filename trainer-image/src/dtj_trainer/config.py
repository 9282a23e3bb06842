"""The config of one run: the config of each component in one tree, as train.yaml spells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dtj_trainer.communication import CommunicationConfig
from dtj_trainer.components.activation_checkpoint import Recompute
from dtj_trainer.components.compile import Compile
from dtj_trainer.components.early_stopping import EarlyStopConfig
from dtj_trainer.components.elastic import ElasticConfig
from dtj_trainer.components.lr_schedule import ScheduleConfig
from dtj_trainer.components.optimizer import OptimizerConfig
from dtj_trainer.components.precision import PrecisionConfig
from dtj_trainer.data.loader import LoaderConfig
from dtj_trainer.errors import ConfigError
from dtj_trainer.state import StateConfig
from dtj_trainer.strategies import FLAT, DdpConfig, DeepSpeedConfig, LocalSgdConfig, StrategyConfig, name_of
from dtj_trainer.telemetry.sinks import TelemetryConfig


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """One run. Give `epochs` or `steps`."""

    epochs: float | None = None
    steps: int | None = None
    global_batch_size: int = 64
    """Samples of one optimizer step over all ranks: steps and results don't depend on how many
    ranks there are, unless `elastic.batch` is PerRank."""
    micro_batch_size: int | Literal["auto"] | None = None
    """The most samples that go through the model at once on one rank; the rest of a step's share is
    accumulated. None: a rank's whole share in the first attempt, so that with fewer ranks a step
    needs no more memory. auto: the largest size that fits in memory, with a tenth to spare; on the CPU in
    this rank's share of the container's limit."""
    seed: int = 0
    shuffle: bool = True
    clip_norm: float | None = None
    validate_every_steps: int | None = None
    """Validate this often, besides at the end."""
    tune: bool = False
    """Try other bucket sizes, loader workers and prefetching for at most a minute before the first step, and keep what
    is fastest; other micro-batches too with `micro_batch_size: auto`. The log has what was gained."""
    blocks: str | None = None
    """The modules that are sharded, compiled and recomputed one by one: the name of a class, or a
    pattern of module names, such as encoder.layer.*; None: the repeated modules, which the log
    names."""
    recompute: Recompute = "none"
    activation_offload: bool = False
    """Keep in host memory what the backward of each block needs, beside `recompute`. On a CPU nothing is moved."""
    compile: Compile = False
    """torch.compile, block by block. True is inductor, which needs a C++ compiler in the image."""
    ema_decay: float | None = None
    """Keep averaged weights and validate with them, e.g. 0.999."""
    deterministic: bool = False
    """Use only algorithms that give the same bits every time, which on a GPU are slower. An
    operation that has no such algorithm is an error."""
    cpu_threads: int | None = None
    """torch threads of one process on the CPU; None: as OMP_NUM_THREADS sets it."""
    data: LoaderConfig = field(default_factory=LoaderConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    init_from: Path | None = None
    """Weights to begin with: a checkpoint or a job's folder, a .safetensors, .pt or .pth file, or a folder of
    .safetensors files. A run that resumes has its own."""
    init_partial: bool = False
    """Load what fits of `init_from` by name and shape, and log the rest."""
    strategy: StrategyConfig = field(default_factory=DdpConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    early_stop: EarlyStopConfig | None = None
    state: StateConfig = field(default_factory=StateConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError("write either epochs or steps, not both")
        if self.epochs is not None and self.epochs <= 0:
            raise ConfigError(f"epochs={self.epochs}: write a number above 0")
        for name in ("steps", "validate_every_steps", "cpu_threads", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: write 1 or more")
        if self.micro_batch_size != "auto" and self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size={self.micro_batch_size}: write 1 or more, auto, or leave it out")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed={self.seed}: write a number from 0 to 2^32 - 1")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError(f"clip_norm={self.clip_norm}: write a norm above 0, or leave it out")
        if self.recompute not in ("none", "block", "selective"):
            raise ConfigError(f"recompute={self.recompute!r}: write none, block or selective")
        if not isinstance(self.compile, bool) and self.compile not in ("inductor", "aot_eager"):
            raise ConfigError(f"compile={self.compile!r}: write true, false, inductor or aot_eager")
        if self.activation_offload and self.compile is not False:
            raise ConfigError(
                "activation_offload does not work with compile, whose graphs choose what is kept: write compile: false"
            )
        if self.tune and self.compile is not False:
            raise ConfigError("tune does not work with compile, which would compile each try: write compile: false")
        if self.early_stop and self.validate_every_steps is None:
            raise ConfigError("early_stop counts validations: write validate_every_steps too")
        if self.communication.keeps_residuals and self.precision.dtype == "fp16":
            raise ConfigError(
                f"communication.method={self.communication.method} does not work with precision fp16, whose loss scale "
                "changes under what is kept: write precision bf16"
            )
        if self.communication.noise_scale and self.precision.dtype == "fp16":
            raise ConfigError("communication.noise_scale does not work with precision fp16, whose gradients are scaled")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(f"ema_decay={self.ema_decay}: write a number between 0 and 1, such as 0.999")
        if isinstance(self.strategy, LocalSgdConfig):
            self._check_local_sgd()
        if isinstance(self.strategy, DeepSpeedConfig):
            self._check_deepspeed(self.strategy)
        if isinstance(self.strategy, FLAT):
            self._check_flat(name_of(self.strategy))

    def _check_flat(self, strategy: str) -> None:
        instead = "fsdp" if strategy == "fsdp_scratch" else "ddp or fsdp"
        if self.ema_decay is not None:
            raise ConfigError(f"ema_decay does not work with strategy {strategy}: write strategy {instead}")
        if not self.optimizer.decay_vectors:
            raise ConfigError(
                f"optimizer.decay_vectors: false does not work with strategy {strategy}: write strategy {instead}"
            )

    def _check_deepspeed(self, strategy: DeepSpeedConfig) -> None:
        file = strategy.config
        rejected = {
            f"precision.dtype={self.precision.dtype}": (
                self.precision.dtype != "fp32",
                f"write bf16, fp16 or torch_autocast in {file}",
            ),
            "micro_batch_size=auto": (self.micro_batch_size == "auto", "write a number"),
            "tune": (self.tune, "leave it out"),
            "compile": (self.compile is not False, "leave it out"),
            "ema_decay": (self.ema_decay is not None, "leave it out"),
            "activation_offload": (self.activation_offload, f"write activation_checkpointing in {file}"),
            f"communication.method={self.communication.method}": (
                not self.communication.is_plain,
                f"leave communication out: {file} has communication_data_type and quantized gradients",
            ),
            "elastic.batch=PerRank": (self.elastic.batch == "PerRank", "write Global"),
            "checkpoint.snapshot_every_steps": (
                self.state.checkpoint.snapshot_every_steps not in ("auto", 0),
                "write 0: DeepSpeed's state is saved to the volume alone",
            ),
        }
        for name, (is_set, instead) in rejected.items():
            if is_set:
                raise ConfigError(f"{name} does not work with strategy deepspeed: {instead}")

    def _check_local_sgd(self) -> None:
        if self.ema_decay is not None:
            raise ConfigError("ema_decay does not work with strategy local_sgd, whose ranks differ: leave it out")
        if self.state.checkpoint.snapshot_every_steps not in ("auto", 0):
            raise ConfigError(
                "checkpoint.snapshot_every_steps does not work with strategy local_sgd, whose ranks differ: write 0"
            )
