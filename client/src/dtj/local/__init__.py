"""`dtj run`: this machine takes the place of the cluster.

The planner and the agent are the same as there.
"""
