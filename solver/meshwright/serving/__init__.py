"""Serving: the plan by which a cluster answers requests to a model fastest."""
