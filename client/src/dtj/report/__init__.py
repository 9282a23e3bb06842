"""`dtj report`: a job's timeline by rank, from its status and its metrics, on one page."""
