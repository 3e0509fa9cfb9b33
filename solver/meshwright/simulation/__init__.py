"""The step of a plan with jitter, slow GPUs and failures, over many samples."""
