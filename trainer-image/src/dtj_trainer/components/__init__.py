"""What a training is composed of: optimizer, learning rate, precision, compilation, validation."""
