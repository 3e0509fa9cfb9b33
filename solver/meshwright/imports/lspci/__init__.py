"""The devices that lspci lists, for its importer."""
