"""What Meshwright answers, as frozen data that goes to JSON and back."""
