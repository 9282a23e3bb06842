"""Leader election by a Lease: the pure decisions, and the process that carries them out."""
