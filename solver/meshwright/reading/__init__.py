"""Text of others, read within limits: every value with its line, errors in words."""
