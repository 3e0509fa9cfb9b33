"""The matrix of `nvidia-smi topo -m`, for its importer."""
