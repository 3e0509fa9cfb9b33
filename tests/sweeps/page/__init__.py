"""The page of a search: as a file, and opened in a browser."""
