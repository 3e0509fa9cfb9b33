"""The exact model. Only this folder imports ortools; it sees whole numbers alone."""
