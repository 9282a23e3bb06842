"""DDP and FSDP written from torch.distributed primitives."""
