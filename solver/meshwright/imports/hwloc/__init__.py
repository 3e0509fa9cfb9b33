"""The machine in a file of hwloc, for its importer."""
