"""CP-SAT: its import, solves that can be interrupted, and orders of a host's GPUs.

Only this room imports OR-Tools; it sees whole numbers alone. `order_model` chooses the
GPU of a host that each rank sits on; the model of plans is in `planner.model`.
"""
