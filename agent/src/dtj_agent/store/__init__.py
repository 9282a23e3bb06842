"""The rendezvous store of an attempt, which outlives every rank."""
