"""The GPU of each rank, on hosts whose GPUs are not all alike."""
