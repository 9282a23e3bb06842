"""Data by global sample index: every sample exactly once per epoch, even if the number of ranks changes."""
