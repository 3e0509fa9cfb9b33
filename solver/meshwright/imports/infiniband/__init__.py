"""The facts and the levels of an InfiniBand fabric, for its importer."""
