"""Parts of a training that are alike under every strategy: optimizer, learning rate, precision,
compilation, validation."""
