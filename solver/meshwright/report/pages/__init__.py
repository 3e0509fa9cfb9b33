"""The page that `--report` writes: an answer in one file, with all its charts."""
