"""Kinds of files of other tools that a spec takes for its cluster."""

MACHINES = ("nvidia_smi", "rocm_smi", "nccl_xml", "hwloc", "slurm_gres")
"""Those that have the inside of a machine."""

FABRICS = ("slurm", "ibnetdiscover")
"""Those that have what joins machines."""
