"""Launch configurations as settings: name, value and line, whatever the format."""
