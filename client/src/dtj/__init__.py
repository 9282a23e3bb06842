"""The dtj command: runs a job on this machine, or submits and follows it on a cluster."""
