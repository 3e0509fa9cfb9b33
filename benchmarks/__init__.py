"""Measurements, each run by one command; tests never time."""
