"""The Kubernetes I/O: what was observed, and carrying out a plan."""
