"""What an agent keeps on disk: the writer lease, its own state, log files."""
