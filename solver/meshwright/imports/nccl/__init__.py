"""Files that NCCL prints."""
