"""Mutation testing: small changes to the code, and whether a test sees each."""
