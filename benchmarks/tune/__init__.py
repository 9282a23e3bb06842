"""Sweeps of 40 trials, 4 at once: undisturbed, killed five times, and with early stops."""
