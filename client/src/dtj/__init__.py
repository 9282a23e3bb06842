"""The dtj command: run a job here, or submit and follow it on a cluster."""
