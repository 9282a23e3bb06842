"""The agent: PID 1 of a trainer container. Standard library only, Python 3.9 and later."""
