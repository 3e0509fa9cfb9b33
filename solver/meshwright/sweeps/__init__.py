"""Many specs at once: cases, the store they stream into, fronts, and pages."""
