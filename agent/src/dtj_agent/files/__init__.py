"""The files of an agent: the writer lease, its own state, logs."""
