"""Tuning of a run's loop before its first step: `search` decides what to try, `probe` times it, `tune` does both."""
