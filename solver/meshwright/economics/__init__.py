"""What surrounds a step: the training run with its costs, collectives, one matmul."""
