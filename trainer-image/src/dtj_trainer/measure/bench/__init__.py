"""One trial of `dtj bench`: the same model, samples and seed in each arm."""
