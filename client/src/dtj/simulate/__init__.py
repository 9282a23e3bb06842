"""`dtj simulate`: step time, scaling efficiency and goodput for N ranks, by a model of the link."""
