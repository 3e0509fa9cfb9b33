"""Calibration to a user's own runs: switches, efficiencies, and which runs to make."""
