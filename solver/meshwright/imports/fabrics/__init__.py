"""Files that say which switches join machines."""
