"""The DistributedTrainingJob API (`api`) and the pure planner (`plan`): what the operator and `dtj run` share."""
