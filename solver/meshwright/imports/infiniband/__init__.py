"""Files that InfiniBand's tools print."""
