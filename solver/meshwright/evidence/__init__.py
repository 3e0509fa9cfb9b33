"""Predictions against runs that other people measured, and how wrong they are."""
