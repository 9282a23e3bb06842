"""Hyperparameter search whose trials are jobs."""
