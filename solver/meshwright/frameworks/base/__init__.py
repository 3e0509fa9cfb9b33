"""The `Framework` class, rules that several frameworks share, and the registry."""
