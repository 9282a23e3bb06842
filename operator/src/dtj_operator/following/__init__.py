"""Follows the agents of running jobs: one kept connection per job, outside the reconcile workers."""
