"""The user's question, as frozen pydantic models, and how it is read from YAML."""
