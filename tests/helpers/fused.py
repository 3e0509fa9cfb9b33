"""Words of tests for what is one kernel, as `training.fused` has it."""

from __future__ import annotations

FUSED = {
    "all": ["norm", "residual", "rope", "activation", "softmax", "dropout"],
    "norms": ["norm"],
    "none": [],
}
