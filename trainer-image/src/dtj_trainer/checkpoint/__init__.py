"""Checkpoints on a shared volume: checksummed, committed by one rename, fenced by the lease."""
