"""Components of a training run: optimizer, learning rate, precision, compilation, validation."""
