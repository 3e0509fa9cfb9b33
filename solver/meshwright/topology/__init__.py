"""The cluster as a NetworkX graph, and what groups of its GPUs pay on its links."""
