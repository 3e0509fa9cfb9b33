"""Files that Slurm prints."""
