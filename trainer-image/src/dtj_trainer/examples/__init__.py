"""Examples that are tests too: real training on data that every installation has."""
