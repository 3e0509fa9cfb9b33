"""Files that say how the GPUs and NICs of one machine are joined."""
