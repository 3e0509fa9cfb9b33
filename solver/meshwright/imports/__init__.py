"""Reads what other tools print about a cluster, as facts and as topologies."""
