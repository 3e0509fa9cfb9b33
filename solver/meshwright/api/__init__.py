"""The functions of `import meshwright`, one module for each."""
