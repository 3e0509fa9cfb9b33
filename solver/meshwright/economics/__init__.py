"""The training run around the step: FLOPs, days, money, failures, and what helps."""
