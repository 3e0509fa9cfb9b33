"""Predictions against published measurements: pricing runs, scores, calibration."""
