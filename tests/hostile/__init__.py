"""Text that would be code somewhere, put into every input and looked for everywhere."""
