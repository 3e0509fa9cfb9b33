"""The cluster as a NetworkX graph, and the cost of its links to groups of GPUs."""
