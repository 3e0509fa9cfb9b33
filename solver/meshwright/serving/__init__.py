"""Serving: the same model and cluster, asked how to answer requests."""
