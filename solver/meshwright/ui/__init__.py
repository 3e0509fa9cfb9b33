"""The page in the browser: a small server over the public API, and its scripts."""
