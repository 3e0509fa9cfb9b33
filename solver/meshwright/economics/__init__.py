"""Money, time and failures of a training run; its collectives; one matmul."""
