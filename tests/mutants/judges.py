"""Which tests judge which files: fast ones, the most telling first."""

from __future__ import annotations

from fnmatch import fnmatch

ORDERS = [
    "test_placement.py::test_orders_are_those_of_brute_force",
    "test_placement.py::test_cube_mesh_has_the_orders_of_brute_force",
    "test_placement.py::test_rings_in_rings_cannot_be_turned_by_one",
    "test_placement.py::test_goals_hold_back_what_is_of_no_interest",
    "test_placement.py::test_ring_of_eight_takes_double_links_throughout",
]

JUDGES: dict[str, list[str]] = {
    "cost/schedule.py": ["test_recomputed.py", "test_schedule.py"],
    "cost/tasks.py": ["test_recomputed.py", "test_schedule.py"],
    "cost/arrays.py": [
        "test_prices_of_rows.py",
        "test_recomputed.py",
        "test_bounds.py",
    ],
    "cost/framework.py": [
        "test_state_bytes.py",
        "test_recomputed.py",
        "test_gemm.py::test_overhead_is_itemised_and_adds_up",
        "test_evidence.py::test_memory_is_scored_by_what_was_counted",
    ],
    "cost/efficiency.py": ["test_efficiency.py", "test_recomputed.py"],
    "cost/transformer.py": ["test_transformer.py", "test_recomputed.py"],
    "cost/offload.py": ["test_recomputed.py", "test_offload.py", "test_bounds.py"],
    "cost/*.py": [
        "test_recomputed.py",
        "test_prices_of_rows.py",
        "test_known_answers.py",
    ],
    "bounds.py": ["test_bounds_of_splits.py", "test_bounds.py"],
    "prune.py": ["test_prune.py"],
    "cpsat/goal.py": ORDERS,
    "cpsat/climb.py": ORDERS,
    "cpsat/seat*.py": ORDERS,
    "cpsat/listed.py": ORDERS,
    "cpsat/*.py": ["test_cpsat.py", "test_two_gpus.py"],
    "explain/degrees.py": ["test_degrees.py"],
    "explain/compare*.py": [
        "test_compare.py",
        "test_compare_rules.py",
        "test_compare_in_full.py",
    ],
    "explain/turns.py": ["test_compare.py", "test_compare_rules.py"],
    "explain/*.py": ["test_repairs.py", "test_explain.py"],
}
"""By pattern, of which the first that fits a file counts; paths below the package."""


def judges(path: str) -> list[str]:
    """Return the tests that judge a file, in the order in which they are run."""
    tests = next(own for pattern, own in JUDGES.items() if fnmatch(path, pattern))
    return [f"tests/{name}" for name in tests]
