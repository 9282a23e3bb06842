"""What one CUDA GPU gives under the trainer: python -m benchmarks.gpu --help."""
