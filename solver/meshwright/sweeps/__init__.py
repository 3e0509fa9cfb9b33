"""Answers from many solves: numbers of machines, rentals, searches of whole grids."""
