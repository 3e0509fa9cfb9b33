"""Published measurements of serving, and what is predicted for them."""
