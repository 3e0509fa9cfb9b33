"""What frameworks are made of, rules that several share, and how one is found."""
