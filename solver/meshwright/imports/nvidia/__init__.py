"""Files that NVIDIA prints."""
