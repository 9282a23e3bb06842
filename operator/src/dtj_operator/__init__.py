"""The Kubernetes operator: observes a job, plans, and executes the plan."""

from dtj_operator import light_imports

light_imports.register()
