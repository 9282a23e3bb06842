"""Checkpoints on a shared volume: written aside, checksummed, committed by rename, fenced by the attempt's lease."""
