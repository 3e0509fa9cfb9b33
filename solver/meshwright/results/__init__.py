"""The answers of Meshwright, as frozen data that converts to JSON and back."""
