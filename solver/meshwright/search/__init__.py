"""From rows to a proven plan: rows, bounds, one model, splits, proof."""
