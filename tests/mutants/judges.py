"""Which tests judge which files: fast ones, the most telling first."""

from __future__ import annotations

from fnmatch import fnmatch

ORDERS = [
    "placement/test_placement.py::test_orders_are_those_of_brute_force",
    "placement/test_placement.py::test_cube_mesh_has_the_orders_of_brute_force",
    "placement/test_placement.py::test_rings_in_rings_cannot_be_turned_by_one",
    "placement/test_placement.py::test_orders_above_a_limit_are_left_out",
    "placement/test_placement.py::test_ring_of_eight_takes_double_links_throughout",
]

MEMORY = [
    "planner/test_split_bounds_by_brute_force.py",
    "planner/test_bounds_of_odd_stages.py",
    "planner/test_memory_fit.py",
    "planner/test_known_fits.py",
    "planner/test_admissible.py",
    "planner/test_leading_chunks.py",
    "planner/test_state_fit.py",
    "cost/test_offload.py",
]

JUDGES: dict[str, list[str]] = {
    "cost/schedule.py": ["recomputed/test_recomputed.py", "cost/test_schedule.py"],
    "plans/schedules.py": ["recomputed/test_recomputed.py", "cost/test_schedule.py"],
    "plans/columns.py": [
        "cost/test_prices_of_rows.py",
        "recomputed/test_recomputed.py",
        "planner/test_admissible.py",
    ],
    "cost/state.py": ["cost/test_state_bytes.py", "recomputed/test_recomputed.py"],
    "frameworks/*.py": [
        "frameworks/test_frameworks.py",
        "cost/test_state_bytes.py",
        "recomputed/test_recomputed.py",
        "economics/test_gemm.py::test_overhead_is_itemised_and_adds_up",
        "evidence/test_runs.py::test_memory_is_scored_by_what_was_counted",
    ],
    "cost/job.py": [
        "cost/test_hardware_efficiency.py",
        "recomputed/test_recomputed.py",
    ],
    "cost/parameters_and_flops.py": [
        "cost/test_parameters_and_flops.py",
        "catalog/test_models.py",
        "recomputed/test_recomputed.py",
    ],
    "cost/whole_model.py": [
        "cost/test_lora.py",
        "cost/test_parameters_and_flops.py",
        "recomputed/test_recomputed.py",
    ],
    "cost/attention.py": [
        "cost/test_attention_kernels.py",
        "cost/test_layer_kinds.py",
        "recomputed/test_recomputed.py",
    ],
    "cost/picked_attention.py": [
        "cost/test_picked_attention.py",
        "recomputed/test_recomputed.py",
    ],
    "cost/offload.py": [
        "recomputed/test_recomputed.py",
        "cost/test_offload.py",
        "planner/test_admissible.py",
    ],
    "cost/blocks.py": [
        "cost/test_muon.py",
        "cost/test_layer_kinds.py",
        "recomputed/test_recomputed.py",
        "cost/test_prices_of_rows.py",
        "golden/test_published_numbers.py",
    ],
    "cost/held_state.py": [
        "cost/test_offload.py",
        "recomputed/test_recomputed.py",
        "cost/test_prices_of_rows.py",
    ],
    "cost/*.py": [
        "cost/test_layer_kinds.py",
        "recomputed/test_recomputed.py",
        "cost/test_prices_of_rows.py",
        "golden/test_published_numbers.py",
    ],
    "planner/split_bounds.py": [
        "planner/test_split_bounds_by_brute_force.py",
        "planner/test_bounds_of_odd_stages.py",
        "planner/test_split_bounds.py",
        "planner/test_admissible.py",
    ],
    "planner/plans.py": [
        "planner/test_plans.py",
        "planner/test_simplest_and_near.py",
        "planner/test_rule_effort.py",
        "golden/test_two_gpus.py",
        "planner/test_brute_force.py",
    ],
    "planner/narrow.py": [
        "planner/test_branch_and_bound.py",
        "planner/test_freed.py",
        "planner/test_out_of_time.py",
    ],
    "planner/candidates.py": [
        "planner/test_branch_and_bound.py",
        "planner/test_admissible.py",
        "planner/test_freed.py",
        "planner/test_user_rules.py",
        "planner/test_simplest_and_near.py",
        "golden/test_two_gpus.py",
        "planner/test_brute_force.py",
    ],
    "planner/families.py": [
        "planner/test_known_fits.py",
        "planner/test_prepared.py",
        "planner/test_out_of_time.py",
        "planner/test_admissible.py",
        "golden/test_two_gpus.py",
        "planner/test_brute_force.py",
    ],
    "planner/degrees.py": [
        "planner/test_enumeration.py",
        "planner/test_out_of_time.py",
        "planner/test_admissible.py",
        "planner/test_prepared.py",
        "certificates/test_certificates.py::test_certificates_of_bundled_specs_hold"
        "[gpt-1.3b-dgx-1v]",
        "golden/test_two_gpus.py",
        "planner/test_brute_force.py",
        "explanations/test_lattice_map.py",
    ],
    "planner/rows.py": [
        "planner/test_kept_meshes.py",
        "planner/test_known_fits.py",
        "planner/test_out_of_time.py",
        "planner/test_memory_fit.py",
        "planner/test_admissible.py",
        "golden/test_two_gpus.py",
        "planner/test_brute_force.py",
    ],
    "planner/nearest_miss.py": [
        "planner/test_nearest_legal.py",
        "planner/test_split_bounds.py",
        "explanations/test_judged_plan.py",
        "explanations/test_explain.py",
    ],
    "cpsat/group_cost.py": ORDERS,
    "cpsat/order_model.py": ORDERS,
    "cpsat/ortools.py": ["cli/test_interrupts.py"],
    "planner/best_split.py": [
        "planner/test_number_bound.py",
        "planner/test_split_model.py",
    ],
    "planner/split_model.py": [
        "planner/test_constraints.py",
        "planner/test_split_model.py",
    ],
    "planner/linear_rules.py": [
        "planner/test_constraints.py",
        "planner/test_split_model.py",
    ],
    "planner/model.py": ["planner/test_model.py", "golden/test_two_gpus.py"],
    "planner/prove.py": ["planner/test_model.py", "golden/test_two_gpus.py"],
    "planner/parts.py": ["planner/test_parts.py"],
    "planner/rule_clauses.py": [
        "planner/test_rule_clauses.py",
        "planner/test_user_rules.py",
        "planner/test_rule_effort.py",
    ],
    "planner/rule_cuts.py": [
        "planner/test_rule_effort.py",
        "planner/test_user_rules.py",
    ],
    "planner/mixed_clusters.py": ["planner/test_mixed_clusters.py"],
    "sweeps/open_choices.py": [
        "sweeps/test_drawn_choices.py",
        "sweeps/test_open_question.py",
        "explanations/test_open_question.py",
    ],
    "sweeps/rentals.py": [
        "sweeps/test_drawn_choices.py",
        "sweeps/test_rentals.py",
    ],
    "explanations/lattice_map.py": ["explanations/test_lattice_map.py"],
    "planner/compute_bound.py": [
        "planner/test_compute_bound.py",
        "sweeps/test_open_question.py",
    ],
    "planner/pipeline.py": [
        "planner/test_split_model.py",
        "planner/test_split_bounds.py",
    ],
    "planner/stages.py": MEMORY,
    "planner/memory_fit.py": MEMORY,
    "planner/integer_costs.py": MEMORY,
    "planner/legal_ways.py": [
        "planner/test_enumeration.py",
        "planner/test_legal_ways.py",
        "planner/test_out_of_time.py",
        "rules/test_legality.py",
    ],
    "planner/unplaced.py": [
        "planner/test_legal_ways.py",
        "planner/test_out_of_time.py",
        "planner/test_known_fits.py",
        "planner/test_interleaved_groups.py",
        "rules/test_legality.py",
        "planner/test_simplest_and_near.py",
        "planner/test_recompute_scopes.py",
        "planner/test_segments.py",
    ],
    "planner/placer.py": [
        "planner/test_placer.py",
        "placement/test_placement.py",
        "placement/test_placement_of_many.py",
    ],
    "planner/link_bounds.py": [
        "planner/test_link_bounds.py",
        "planner/test_split_bounds.py",
    ],
    "planner/side_limits.py": [
        "planner/test_split_bounds.py",
        "planner/test_user_rules.py",
    ],
    "planner/table.py": [
        "planner/test_bounds_of_odd_stages.py",
        "planner/test_shown_model.py",
        "planner/test_plans.py",
        "planner/test_model.py",
        "planner/test_split_bounds_by_brute_force.py",
    ],
    "planner/solve.py": [
        "planner/test_answer.py",
        "planner/test_safety.py",
        "planner/test_simplest_and_near.py",
        "planner/test_parts.py",
        "planner/test_tolerance.py",
        "planner/test_out_of_time.py",
        "sweeps/test_open_question.py",
    ],
    "planner/options.py": ["planner/test_tolerance.py", "planner/test_parts.py"],
    "planner/answer.py": [
        "planner/test_answer.py",
        "planner/test_simplest_and_near.py",
        "planner/test_safety.py",
        "planner/test_bands.py",
        "planner/test_rule_effort.py",
        "planner/test_out_of_time.py",
    ],
    "planner/*.py": [
        "certificates/test_certificates.py::test_certificates_of_bundled_specs_hold"
        "[gpt-1.3b-dgx-1v]",
        "planner/test_admissible.py",
        "planner/test_simplest_and_near.py",
        "planner/test_known_fits.py",
        "golden/test_two_gpus.py",
        "planner/test_brute_force.py",
    ],
    "rules/sums.py": [
        "rules/test_sums.py",
        "planner/test_uneven_chunks.py",
        "planner/test_recompute_scopes.py",
    ],
    "rules/user_rules.py": ["rules/test_user_rules.py", "planner/test_user_rules.py"],
    "rules/rule_truth.py": ["rules/test_rule_truth.py", "rules/test_user_rules.py"],
    "rules/universal.py": [
        "rules/test_legality.py",
        "planner/test_leading_chunks.py::test_long_steps_spread_them_only_where_asked",
        "cost/test_inputs_on_host.py::test_a_rule_of_its_own",
        "cost/test_inputs_on_host.py::test_it_needs_a_host",
        "frameworks/test_frameworks.py",
        "cost/test_offload.py",
    ],
    "rules/*.py": [
        "rules/test_legality.py",
        "frameworks/test_frameworks.py",
        "cost/test_offload.py",
    ],
    "check/timeline.py": ["check/test_timeline.py", "recomputed/test_recomputed.py"],
    "check/*.py": [
        "check/test_timeline.py",
        "cli/test_check.py",
        "rules/test_user_rules.py",
        "recomputed/test_recomputed.py",
        "golden/test_by_hand.py",
        "planner/test_mixed_clusters.py",
    ],
    "diagnosis/memory_event.py": ["diagnosis/test_memory_event.py"],
    "diagnosis/*.py": [
        "diagnosis/test_faults.py",
        "diagnosis/test_hypotheses.py",
        "diagnosis/test_diagnose.py",
    ],
    "explanations/degrees.py": ["explanations/test_degrees.py"],
    "explanations/decisions.py": [
        "explanations/test_edits.py",
        "explanations/test_repairs.py",
        "explanations/test_marginal_values.py",
        "explanations/test_user_rules.py",
        "explanations/test_explain.py",
    ],
    "explanations/compare*.py": [
        "explanations/test_crossovers.py",
        "explanations/test_shardings.py",
        "explanations/test_compare.py",
        "explanations/test_compare_in_full.py",
        "explanations/test_compare_two_gpus.py",
    ],
    "explanations/framework_rules.py": [
        "explanations/test_explainer.py",
        "golden/test_field_cases.py",
        "explanations/test_explain.py",
        "explanations/test_framework_limits.py",
        "laws/test_laws.py",
    ],
    "explanations/judged_plan.py": [
        "explanations/test_slack.py",
        "explanations/test_origins.py",
        "explanations/test_given_up.py",
        "explanations/test_judged_plan.py",
        "explanations/test_rank.py",
        "explanations/test_explain.py",
    ],
    "explanations/levers.py": [
        "explanations/test_repairs.py",
        "explanations/test_levers.py",
    ],
    "explanations/published.py": ["explanations/test_published.py"],
    "explanations/marginal_values.py": [
        "explanations/test_slack.py",
        "explanations/test_marginal_values.py",
        "explanations/test_decision_costs.py",
        "explanations/test_levers.py",
        "planner/test_prepared.py",
    ],
    "explanations/explain.py": [
        "explanations/test_explainer.py",
        "explanations/test_explain.py",
        "explanations/test_levers.py",
        "explanations/test_judged_plan.py",
        "explanations/test_user_rules.py",
        "report/test_screen.py::"
        "test_no_repair_is_told_where_the_time_was_up_in_the_last_solve",
    ],
    "explanations/conflict.py": [
        "explanations/test_conflict.py",
        "explanations/test_explain.py",
        "explanations/test_user_rules.py",
        "laws/test_laws.py",
    ],
    "explanations/*.py": [
        "explanations/test_repairs.py",
        "explanations/test_given_up.py",
        "explanations/test_hardware.py",
        "explanations/test_explain.py",
    ],
}
"""By pattern, of which the first that fits a file counts; paths below the package."""

OF_ROOM: dict[str, list[str]] = {
    "planner": [
        "planner/test_frozen.py",
        "planner/test_sizes.py",
        "planner/test_work.py",
        "planner/test_parts.py",
        "planner/test_mixed_clusters.py",
    ],
    "explanations": [
        "planner/test_frozen.py",
        "explanations/test_work_of_explanations.py",
        "explanations/test_marginal_values.py",
        "explanations/test_repairs.py",
        "explanations/test_user_rules.py",
        "explanations/test_judged_plan.py",
    ],
}
"""For what the judges of a file do not see, the tests that reach most of its room."""

WIDER = [
    "rules", "cpsat", "cost", "placement", "explanations", "planner", "recomputed",
    "golden", "laws", "frameworks", "plans", "serving", "certificates", "economics",
    "check", "evidence", "calibration", "api", "cli", "diagnosis", "sweeps",
]  # fmt: skip
"""The folders whose tests reach the files judged: for what their judges do not see."""


def judges(path: str) -> list[str]:
    """Return the tests that judge a file, in the order in which they are run."""
    tests = next(judge for pattern, judge in JUDGES.items() if fnmatch(path, pattern))
    of_room = OF_ROOM.get(path.partition("/")[0], [])
    return [f"tests/{name}" for name in dict.fromkeys([*tests, *of_room])]
