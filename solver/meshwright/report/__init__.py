"""Outcomes for people and programs; reports know plans, never solvers."""
