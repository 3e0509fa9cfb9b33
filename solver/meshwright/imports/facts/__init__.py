"""Files that list hosts, GPUs or ports, and not how they are joined."""
