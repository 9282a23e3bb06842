"""Data by global sample index: every sample exactly once an epoch, whatever happens to the world."""
