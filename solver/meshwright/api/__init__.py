"""What `import meshwright` gives: one module for each thing that can be asked."""
