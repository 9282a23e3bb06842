"""Benchmark of the trainer against bare torch loops: python -m benchmarks.trainer --help."""
