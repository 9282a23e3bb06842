"""Benchmark of the trainer on one CUDA GPU: python -m benchmarks.gpu --help."""
