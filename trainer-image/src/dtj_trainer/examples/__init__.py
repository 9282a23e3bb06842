"""Built-in examples: real training on data that every installation has. The tests run them."""
