"""The API types of training.dtj.dev: the one source of the CRD and of its reference page."""
