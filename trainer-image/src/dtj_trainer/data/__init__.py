"""Data by global sample index: every sample once per epoch, also if the world size changes."""
