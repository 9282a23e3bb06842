"""Memory snapshots: each rank's newest state in its pod's shared memory, and what a restart takes from there."""
