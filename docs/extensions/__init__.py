"""Extensions of Sphinx that the site needs, and nothing else does."""
