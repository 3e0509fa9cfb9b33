"""Meshwright beside other planners and cost models."""
