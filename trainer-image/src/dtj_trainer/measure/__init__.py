"""Measures what `dtj simulate` reads: the step of one rank, and the link between ranks."""
