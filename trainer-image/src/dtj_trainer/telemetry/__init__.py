"""What a run measures about itself, and where it goes: agent, console, JSON lines, TensorBoard, MLflow, traces."""
