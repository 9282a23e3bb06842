"""A training for each engine. Every arm of an engine runs the same one."""
