"""Shared by the importers of files of Slurm: host lists, groups, levels."""
