"""Collectives: the process groups of a worker and what is built from torch.distributed primitives."""
