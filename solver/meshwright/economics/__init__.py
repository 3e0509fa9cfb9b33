"""Money, time and failures of a training run, simulated too; collectives; a matmul."""
