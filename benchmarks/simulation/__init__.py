"""Real steps of gloo ranks on shaped links beside what `dtj simulate` models."""
