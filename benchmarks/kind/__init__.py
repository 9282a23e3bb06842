"""Recoveries of a job on a kind cluster from lost pods and nodes."""
