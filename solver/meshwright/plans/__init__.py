"""What a plan is: its fields, its stages, and many plans as columns."""
