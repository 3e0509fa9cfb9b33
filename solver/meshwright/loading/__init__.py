"""From files and names to a spec: presets, imported clusters, plans written as text."""
