"""Which rank sits on which GPU of a host whose GPUs are not all alike."""
