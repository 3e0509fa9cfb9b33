"""JSON Schema of every kind of file that Meshwright reads or writes.

The files beside this module are what `meshwright schema KIND` prints; editors find them
by the first line of a YAML file, `# yaml-language-server: $schema=PATH`.
"""
