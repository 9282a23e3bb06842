"""The DistributedTrainingJob API (`api`) and the planner (`plan`), for operator and client."""
