"""Which tests judge which files: fast ones, the most telling first."""

from __future__ import annotations

JUDGES: dict[str, list[str]] = {
    "cost/schedule.py": ["test_recomputed.py", "test_schedule.py"],
    "cost/tasks.py": ["test_recomputed.py", "test_schedule.py"],
    "cost/arrays.py": ["test_recomputed.py", "test_bounds.py"],
    "cost/framework.py": ["test_recomputed.py", "test_state_bytes.py"],
    "cost/efficiency.py": ["test_efficiency.py", "test_recomputed.py"],
    "cost/transformer.py": ["test_recomputed.py", "test_transformer.py"],
    "cost/offload.py": ["test_recomputed.py", "test_offload.py"],
    "cost/*.py": ["test_recomputed.py", "test_known_answers.py"],
    "bounds.py": ["test_bounds_of_splits.py", "test_bounds.py"],
    "prune.py": ["test_prune.py"],
    "cpsat/goal.py": ["test_placement.py"],
    "cpsat/climb.py": ["test_placement.py"],
    "cpsat/seat*.py": ["test_placement.py"],
    "cpsat/listed.py": ["test_placement.py"],
    "cpsat/*.py": ["test_cpsat.py", "test_two_gpus.py"],
    "explain/degrees.py": ["test_degrees.py"],
    "explain/compare*.py": ["test_compare.py", "test_compare_rules.py"],
    "explain/turns.py": ["test_compare.py", "test_compare_rules.py"],
    "explain/*.py": ["test_repairs.py", "test_explain.py"],
}
"""By pattern, of which the first that fits a file counts; paths below the package."""
