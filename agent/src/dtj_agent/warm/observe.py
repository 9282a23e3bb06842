"""Observes a forked worker's training without any import in the user's script."""

from __future__ import annotations


def install(rank: int, attempt: int, report_socket: str, stack_file: str) -> None:
    """Prepares the observation of this worker. Call this after the fork, before the user's code runs."""
