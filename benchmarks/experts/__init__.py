"""Configurations that teams published, and what Meshwright says of them."""
