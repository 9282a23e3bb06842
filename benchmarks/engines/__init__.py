"""Each engine beside its framework's own launcher: the same script, the same kill."""
