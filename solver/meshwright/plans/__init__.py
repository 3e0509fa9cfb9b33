"""Plans: their fields, their stages, and many plans as columns."""
