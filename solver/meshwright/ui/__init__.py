"""The page to play with: a small server over the public API, and its scripts."""
