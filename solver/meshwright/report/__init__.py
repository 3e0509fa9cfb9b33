"""Results as text, markdown, JSON and pictures; reports know results, not solvers."""
