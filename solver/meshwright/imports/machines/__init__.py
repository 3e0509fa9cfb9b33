"""Files that describe how the GPUs and NICs of one machine are joined."""
