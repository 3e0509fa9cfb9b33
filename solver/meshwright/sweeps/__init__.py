"""Searches over many specs: cases, worker pools, the store, fronts, and pages."""
