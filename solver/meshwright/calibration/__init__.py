"""Calibration to a user's runs: switches, efficiencies, and which runs to make."""
