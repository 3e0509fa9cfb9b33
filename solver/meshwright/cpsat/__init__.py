"""The exact models. Only this room imports OR-Tools; it sees whole numbers alone.

`model` and its `rules` choose a skeleton and split its layers over the stages;
`order_model` chooses which GPU of a host each rank sits on.
"""
