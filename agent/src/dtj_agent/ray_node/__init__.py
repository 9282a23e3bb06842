"""The Ray node of a pod, in the Python of the job: engine `ray` starts `main` as the pod's rank.

On the standard library alone but for Ray itself, which the job's image has.
"""
