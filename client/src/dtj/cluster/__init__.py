"""`dtj submit | get | logs | wait | delete`: a job on a cluster, with kubectl's flags and terms."""
