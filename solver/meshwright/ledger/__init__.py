"""Every collective of a plan: where, how often, how long, and what hides."""
