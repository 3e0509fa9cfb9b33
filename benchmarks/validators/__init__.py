"""Scripts that run in the environment of the frameworks, on CPU: their own checks.

Each reads a JSON list of launches from its standard input and prints one of verdicts.
"""
