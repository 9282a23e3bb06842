"""`dtj submit --slurm`: a job as an sbatch script, whose pods srun starts on the nodes of an allocation."""
