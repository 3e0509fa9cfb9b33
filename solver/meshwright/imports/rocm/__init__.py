"""Files that AMD's ROCm prints."""
