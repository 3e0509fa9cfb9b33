"""Diagnosis: from the log of a run to what slows it down, and what to change."""
