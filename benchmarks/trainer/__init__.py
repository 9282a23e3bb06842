"""What the trainer costs beside bare torch loops: python -m benchmarks.trainer --help."""
