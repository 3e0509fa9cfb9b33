"""Re-scores one plan in floats: the specification of what a plan is and takes."""
