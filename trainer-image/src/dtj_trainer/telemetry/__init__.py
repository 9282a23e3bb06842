"""Measures a run, and reports it to the agent, console, JSON lines, TensorBoard, MLflow and traces."""
