"""The Kubernetes operator: observes a job, plans, and executes the plan."""
