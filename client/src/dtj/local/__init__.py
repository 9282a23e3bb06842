"""`dtj run`: this machine in the part of the cluster. The planner and the agent are the same as there."""
