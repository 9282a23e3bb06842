"""Components of a training: optimizer, learning rate, precision, compilation, validation."""
