"""From a spec to the best plan and its proof."""
