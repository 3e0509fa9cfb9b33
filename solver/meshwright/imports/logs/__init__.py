"""Logs of training runs, one module for each kind, as facts about the run."""
