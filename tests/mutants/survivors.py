"""Changes that no test has to see, and why: they change no answer."""

from __future__ import annotations

from tests.mutants.changes import Change

REASONS: dict[tuple[str, str, str], str] = {
    (
        "sweeps/open_choices.py",
        "every = question.choices[0].objective.levels",
        "0 -> 1",
    ): "the same: all choices have the objective of their question",
    (
        "planner/best_split.py",
        "last = max(stage.sync.of(n, 0) for stage, n in filled)",
        "max((stage.sync.of(n, 0) for stage, n in filled)) -> min((st",
    ): "only time: the bound is lower",
    (
        "planner/rule_clauses.py",
        "return each[index] if -len(each) <= index < len(each) else N",
        "-len(each) -> len(each)",
    ): "only time: the rule is tested plan by plan",
    (
        "planner/rule_clauses.py",
        "rounding=2 * layers + 2,",
        "2 -> 3",
    ): "only time: whole numbers are rounded more loosely",
    (
        "planner/narrow.py",
        "FIRST_BATCH = 64",
        "64 -> 63",
    ): "only time: the size of a batch",
    (
        "planner/narrow.py",
        "self._place_first(batch, ticks)",
        "self._place_first(batch, ticks) -> pass",
    ): "only time: orders are searched without a first plan",
    (
        "planner/placer.py",
        "high = LARGEST * low",
        "LARGEST * low -> LARGEST / low",
    ): "the same: `low` is 1",
    (
        "planner/placer.py",
        "pairs = gpus * (gpus - 1) // 2",
        "gpus * (gpus - 1) // 2 -> gpus * (gpus - 1) * 2",
    ): "only time: orders of GPUs that are alike are searched",
    (
        "planner/model.py",
        "solver.parameters.num_workers = 1",
        "1 -> 2",
    ): "only time: the number of workers",
    (
        "planner/mixed_clusters.py",
        "if best.best and best.certificate:",
        "best.best and best.certificate -> best.best or best.certific",
    ): "the same: an outcome has both or neither",
    (
        "cpsat/order_model.py",
        "self.model.add(LinearExpr.sum(sent) == group.receivers)",
        "self.model.add(LinearExpr.sum(sent) == group.receivers) -> p",
    ): "only time: it follows from what is heard, and from ranks",
    (
        "rules/universal.py",
        "if partition is not None and stages > 1:",
        "partition is not None and stages > 1 -> partition is not Non",
    ): "the same: one stage holds whole patterns",
    (
        "explanations/framework_rules.py",
        "is_by_kind=False,",
        "False -> True",
    ): "only time: risks are not asked for in a brief solve",
    (
        "explanations/explain.py",
        "start = prepared.against(known_s) if is_known else prepared",
        "prepared.against(known_s) if is_known else prepared -> prepa",
    ): "only time: all families are bounded again",
    (
        "rules/universal.py",
        "is_inherited=True,",
        "True -> False",
    ): "only time: degrees that break the rule are refused one by one",
    (
        "rules/universal.py",
        "return np.asarray(s_per_byte(rows) * least * 1e9 <= 1 + 1e-9",
        "s_per_byte(rows) * least * 1000000000.0 <= 1 + 1e-09 -> s_pe",
    ): "the same: no link is slower than its limit by just a billionth",
    (
        "planner/narrow.py",
        "limit = None if np.isinf(best) else up_to(best)",
        "None if np.isinf(best) else up_to(best) -> up_to(best)",
    ): "only time: nothing is above an infinite limit",
    (
        "planner/nearest_miss.py",
        "split = replace(plain, sequence_parallel=rows.tp > 1)",
        "rows.tp > 1 -> rows.tp >= 1",
    ): "the same: without tensor parallelism the row breaks a rule more",
    (
        "planner/answer.py",
        "if rival_s < best.schedule_s * (1 - 1e-9):",
        "rival_s < best.schedule_s * (1 - 1e-09) -> rival_s <= best.s",
    ): "the same: no plan is faster by just a billionth",
    (
        "planner/rows.py",
        "has_ways = self.unplaced.legal.counts > 0",
        "self.unplaced.legal.counts > 0 -> self.unplaced.legal.counts",
    ): "only time: parts without a legal plan are looked for",
    (
        "planner/stages.py",
        "may = has_all & ((count * most).sum(axis=1) >= layers)",
        "has_all & ((count * most).sum(axis=1) >= layers) -> (count *",
    ): "only time: rows are looked at stage by stage",
    (
        "explanations/marginal_values.py",
        "rounded_s = 2 * rounding_s(prepared.job, fastest.plan)",
        "2 -> 3",
    ): "only time: more plans are looked at than are told",
    (
        "planner/narrow.py",
        "MOST_IN_PART = 1_536",
        "1536 -> 1537",
    ): "only time: the size of a part",
    (
        "planner/options.py",
        "workers: int = 1",
        "1 -> 2",
    ): "only time: the number of workers",
    (
        "rules/universal.py",
        "return np.asarray(s_per_byte(rows) * least * 1e9 <= 1 + 1e-9",
        "1000000000.0 -> 1000000001.0",
    ): "the same: no link is slower than its limit by just a billionth",
    (
        "rules/universal.py",
        "concerns=lambda spec: _shared_width(spec) > 0,",
        "0 -> 1",
    ): "the same: no shared expert has a width of 1",
    (
        "planner/rule_clauses.py",
        "fold = other if factor < 0 else self.fold",
        "factor < 0 -> factor <= 0",
    ): "the same: times 0 all lines are 0",
    (
        "planner/rule_clauses.py",
        "loose = 0 if is_exact else int(layers + 8 + 4 * layers + siz",
        "layers + 8 -> 8",
    ): "the same: the margin is several times what rounding may add",
    (
        "explanations/compare.py",
        "NUDGES = (CLOSE**-0.45, CLOSE**0.45, 0.0)",
        "0.0 -> 1.0",
    ): "only time: more values are solved before a crossover is found",
    (
        "explanations/compare.py",
        "divided_by={axis: by for axis, by in divisors.items() if by ",
        "by > 1 + 1e-09 -> by >= 1 + 1e-09",
    ): "the same: no axis divides by just a billionth more than 1",
    (
        "explanations/compare.py",
        "for order, (low, high) in zip(orders, pairwise(ends), strict",
        "True -> False",
    ): "the same: there are as many orders as spans",
    (
        "explanations/compare.py",
        "is_swap = len(pairs) == 1 and len(movers) == 2",
        "2 -> 1",
    ): "only time: the order beyond a crossover is solved for",
    (
        "explanations/framework_rules.py",
        "is_brief=True,",
        "True -> False",
    ): "only time: what a brief solve leaves out is not told",
    (
        "explanations/explain.py",
        "if spec.cluster.parts:",
        "if spec.cluster.parts: return self._recommend_briefly(spec) ",
    ): "only time: unlike parts are solved as a whole either way",
    (
        "explanations/explain.py",
        "LIKELY = 1.25",
        "1.25 -> 0.25",
    ): "only time: what is not found within it is solved for without it",
    (
        "explanations/explain.py",
        "return replace(self._options, is_brief=True, interrupt=Inter",
        "True -> False",
    ): "only time: what a brief solve leaves out is not told",
    (
        "explanations/framework_rules.py",
        "needs_room = bool(kept & {MEMORY, HOST_MEMORY})",
        "kept & {MEMORY, HOST_MEMORY} -> {MEMORY, HOST_MEMORY}",
    ): "only time: without a limit on memory all skeletons fit",
    (
        "planner/parts.py",
        "if other.has_plan and other.ticks * scale <= price:",
        "other.has_plan and other.ticks * scale <= price -> other.has",
    ): "the same: what is proven is never above what was constructed, if there is time",
    (
        "planner/parts.py",
        "if other.has_plan and other.ticks * scale <= price:",
        "other.ticks * scale <= price -> other.ticks * scale < price",
    ): "the same: either of two plans of one price is told",
    (
        "planner/parts.py",
        "if other.has_plan and other.ticks * scale <= price:",
        "other.ticks * scale -> other.ticks / scale",
    ): "the same: what is proven is never above what was constructed, if there is time",
    (
        "planner/parts.py",
        "if other.has_plan and other.ticks * scale <= price:",
        "other.ticks * scale -> scale",
    ): "the same: what is proven is never above what was constructed, if there is time",
    (
        "planner/parts.py",
        "return np.asarray(np.where(self._having(rows), most, 0.0).ma",
        "0.0 -> 1.0",
    ): "only time: no step takes a nanosecond",
    (
        "planner/families.py",
        "lower = self.lower * pricing.unit",
        "self.lower * pricing.unit -> self.lower / pricing.unit",
    ): "only time: the bounds are looser",
    (
        "planner/model.py",
        "model.hold(memory, model.table.capacity[stage], AT_MOST)",
        "model.hold(memory, model.table.capacity[stage], AT_MOST) -> ",
    ): "only time: rows over memory are left out below",
    (
        "planner/split_bounds.py",
        "at_level = (levelled == high[:, None]) & (levelled > floors)",
        "levelled > floors -> levelled >= floors",
    ): "only time: a split below the floors is not taken as constructed",
    (
        "planner/split_bounds.py",
        "layers = np.where(is_split, recomputed, layers)",
        "np.where(is_split, recomputed, layers) -> np.where(is_split,",
    ): "only time: no valid split is constructed",
    (
        "planner/split_bounds.py",
        "is_short = (short > 0) & (most < stages.full_cap).any(axis=1",
        "(short > 0) & (most < stages.full_cap).any(axis=1) -> short ",
    ): "only time: rows without room are looked at again",
    (
        "planner/parts.py",
        "if other.has_plan and other.ticks * scale <= price:",
        "other.ticks * scale -> other.ticks",
    ): "the same: what is proven is never above what was constructed, if there is time",
    (
        "planner/answer.py",
        "bound = min(max(bound, self.known_bound * self._unit), price",
        "self.known_bound * self._unit -> self.known_bound",
    ): "only the bound: it is looser where the time is up",
    (
        "planner/compute_bound.py",
        "grid = np.indices((len(self.tp), len(self.cp))).reshape(2, -",
        "1 -> 2",
    ): "the same: numpy takes any negative size as what is left",
    (
        "explanations/compare.py",
        "if lead_s * later_lead_s >= 0:",
        "lead_s * later_lead_s -> later_lead_s",
    ): "only time: bisection finds the crossover without the guess",
    (
        "explanations/compare.py",
        "share = lead_s / (lead_s - later_lead_s)",
        "lead_s / (lead_s - later_lead_s) -> lead_s * (lead_s - later",
    ): "only time: bisection finds the crossover without the guess",
    (
        "cost/attention.py",
        '"flash4": Kernel(share=1.19, narrow=50),',
        "50 -> 51",
    ): "a fitted width: one more slows narrow heads by less than a percent",
    (
        "explanations/marginal_values.py",
        "for one in pulled(spec) if edits else ():",
        "pulled(spec) if edits else () -> pulled(spec)",
    ): "only time: no other lever is asked for",
    (
        "planner/answer.py",
        "for row in order[upper[order] <= horizon].tolist():",
        "upper[order] <= horizon -> upper[order] < horizon",
    ): "the same: no plan takes whole ticks and ends just there",
    (
        "planner/narrow.py",
        "self._is_begun |= placed > 0",
        "0 -> 1",
    ): "only time: one more batch is bounded after the time is up",
    (
        "planner/split_model.py",
        "model.cp.add(model.in_each_chunk == number)",
        "model.cp.add(model.in_each_chunk == number) -> pass",
    ): "only time: the splits of other numbers are looked at again",
    (
        "explanations/explain.py",
        "more = tokens / spec.cluster.gpus / plan.tokens_per_s_per_gp",
        "tokens / spec.cluster.gpus -> tokens * spec.cluster.gpus",
    ): "only time: what is not found within it is solved for without it",
    (
        "explanations/explain.py",
        "needed_gib = miss.memory.total_gib if miss and miss.memory e",
        "miss and miss.memory -> miss.memory",
    ): "the same: what does not fit has a near miss",
    (
        "explanations/framework_rules.py",
        "if not kept & {MEMORY, HOST_MEMORY} and (rule := _refusing_a",
        "kept & {MEMORY, HOST_MEMORY} -> {MEMORY, HOST_MEMORY}",
    ): "only time: all skeletons are listed",
    (
        "explanations/framework_rules.py",
        "for rule in rules if len(degrees) else ():",
        "rules if len(degrees) else () -> ()",
    ): "only time: all skeletons are listed",
    (
        "planner/compute_bound.py",
        "may = (tp * cp <= max(counts)) & (micro_batch * min(counts) ",
        "micro_batch * min(counts) -> min(counts)",
    ): "only time: columns that no cluster has are priced",
    (
        "explanations/lattice_map.py",
        "MOST_DOTS = 2_500",
        "2500 -> 2501",
    ): "only a drawing: how many dots are not too many",
    (
        "explanations/lattice_map.py",
        "MOST_DOTS = 2_500",
        "2500 -> 2499",
    ): "only a drawing: how many dots are not too many",
    (
        "sweeps/rentals.py",
        "ROUND = 4",
        "4 -> 5",
    ): "only time: choices that are solved with the same cutoffs",
    (
        "sweeps/rentals.py",
        "ROUND = 4",
        "4 -> 3",
    ): "only time: choices that are solved with the same cutoffs",
    (
        "rules/user_rules.py",
        "one = Skeletons(**plain_columns(1), paths=free_paths(1, 0), ",
        "0 -> 1",
    ): "the same: no rule on steps looks at paths",
    (
        "check/check.py",
        "rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)",
        "2 -> 3",
    ): "only time: more micro-batches are computed task by task",
    (
        "explanations/explain.py",
        "most_gib = max(MORE * spec.usable_gib, roomiest_gib(spec))",
        "MORE * spec.usable_gib -> spec.usable_gib",
    ): "only time: what takes more memory is listed anew",
    (
        "check/check.py",
        "rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)",
        "3 -> 4",
    ): "only time: how many micro-batches are computed task by task",
    (
        "check/check.py",
        "rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)",
        "3 -> 2",
    ): "only time: how many micro-batches are computed task by task",
    (
        "check/check.py",
        "return Bounds(np.zeros(1), np.zeros(1), np.ones(1, dtype=boo",
        "1 -> 2",
    ): "the same: all of it is undefined",
    (
        "planner/split_model.py",
        "base = layers + 1",
        "layers + 1 -> layers",
    ): "the same: beside another stage none has all layers",
    (
        "planner/split_model.py",
        "base = layers + 1",
        "1 -> 2",
    ): "the same: a larger base orders splits alike",
    (
        "check/check.py",
        "rounds = max(MOST_TASKS // (3 * plan.vpp * plan.pp**2), 2)",
        "3 * plan.vpp -> 3 / plan.vpp",
    ): "only time: how many micro-batches are computed task by task",
    (
        "explanations/compare.py",
        "if not below < middle < above:",
        "below < middle < above -> below <= middle < above",
    ): "the same: no turn is expected just at a solved value",
    (
        "explanations/compare.py",
        "if not below < middle < above:",
        "below < middle < above -> below < middle <= above",
    ): "the same: no turn is expected just at a solved value",
    (
        "explanations/explain.py",
        "if best is not None and best.step_s < most_s:",
        "best.step_s < most_s -> best.step_s <= most_s",
    ): "the same: no plan is faster by just a billionth",
    (
        "explanations/marginal_values.py",
        "if plan is not None and plan.step_s < best.step_s * FASTER:",
        "plan.step_s < best.step_s * FASTER -> plan.step_s <= best.st",
    ): "the same: no plan is faster by just a billionth",
    (
        "planner/legal_ways.py",
        "seen = columns_seen(rule, spec, base.take(slice(0, 1)))",
        "1 -> 2",
    ): "the same: a rule looks at the same columns of two skeletons",
    (
        "planner/placer.py",
        "if not any(_dominates(other, costs) for other in grown)",
        "any((_dominates(other, costs) for other in grown)) -> all((_",
    ): "only time: orders that cost more are priced too",
    (
        "planner/rows.py",
        "degrees, copies = degrees[copies > 0], copies[copies > 0]",
        "copies > 0 -> copies >= 0",
    ): "only time: degrees without a mesh are listed",
    (
        "planner/rule_clauses.py",
        "loose = 0 if is_exact else int(layers + 8 + 4 * layers + siz",
        "8 -> 7",
    ): "the same: the margin is several times what rounding may add",
    (
        "planner/solve.py",
        "is_bolder = risk > limits.risk",
        "risk > limits.risk -> risk >= limits.risk",
    ): "the same: the risk asked for is left out",
    (
        "planner/split_bounds.py",
        "return np.asarray(layers + costs.rows.pp * (2 * costs.rows.v",
        "3 -> 4",
    ): "only time: the bound is some nanoseconds lower",
    (
        "diagnosis/memory_event.py",
        "if known is None or weight > known[1]:",
        "weight > known[1] -> weight >= known[1]",
    ): "the same: either of two tensors of one name and likelihood is told",
    (
        "explanations/framework_rules.py",
        "if not kept & {MEMORY, HOST_MEMORY} and (rule := _refusing_a",
        "not kept & {MEMORY, HOST_MEMORY} -> kept & {MEMORY, HOST_MEM",
    ): "only time: all skeletons are listed",
    (
        "explanations/repairs.py",
        "yield from (sets for n, sets in by_size.items() if n > MOST_",
        "for n, sets in by_size.items() if n > MOST_GIVEN_UP -> for n",
    ): "only time: sets that were tried are tried again",
    (
        "planner/prove.py",
        "return cls(scale, left, search.least * scale, upper)",
        "search.least * scale -> search.least / scale",
    ): "only time: bounds on doubted steps are lower",
    (
        "explanations/explain.py",
        "job = prepared.job if prepared else self._options.profile.jo",
        "prepared.job if prepared else self._options.profile.job(spec",
    ): "only time: the job of a changed spec is made anew",
    (
        "planner/split_model.py",
        "if model.pipeline.is_recomputing:",
        "if model.pipeline.is_recomputing: for e, stage in enumerate(",
    ): "only time: it follows from the minimum, and tightens the relaxation",
    (
        "planner/split_bounds.py",
        "has_all = (stages.costs.recompute_scope == ALL_LAYERS)[:, No",
        "stages.costs.recompute_scope == ALL_LAYERS -> stages.costs.r",
    ): "only time: no valid split is constructed",
    (
        "explanations/compare.py",
        "if lead_s * later_lead_s >= 0:",
        "lead_s * later_lead_s >= 0 -> lead_s * later_lead_s > 0",
    ): "the same: without a lead the turn is expected at an end, and not tried there",
    (
        "planner/stages.py",
        "GROUPS_OF_STAGES = 3",
        "3 -> 4",
    ): "only time: more stages are looked at, and fewer are left open",
    (
        "planner/degrees.py",
        "MOST_FABRICS = 4",
        "4 -> 3",
    ): "only time: how many fabrics are cached",
    (
        "planner/linear_rules.py",
        "for other in taken[:e] + taken[e + 1 :]:",
        "e + 1 -> 1",
    ): "the same: no stage takes less than itself",
    (
        "planner/narrow.py",
        "if lower[order[0]] >= FAR_BELOW * self.best:",
        "lower[order[0]] >= FAR_BELOW * self.best -> lower[order[0]] ",
    ): "only time: no bound is just that share of the best",
    (
        "sweeps/open_choices.py",
        "if choice.least_s > most_s:",
        "choice.least_s > most_s -> choice.least_s >= most_s",
    ): "the same: cutoffs are raised by more than rounding",
    (
        "planner/rule_clauses.py",
        "return bool((numbers == np.round(numbers)).all() and np.abs(",
        "np.abs(numbers).max() < 1000000000.0 -> np.abs(numbers).max(",
    ): "the same: whole numbers of just that size are exact too",
    (
        "planner/solve.py",
        "pairs = zip(left, plans, strict=True)",
        "True -> False",
    ): "the same: a search returns a plan for each part",
    (
        "explanations/compare.py",
        "values |= {value for value in plans.known_values if low < va",
        "low < value < high -> low <= value < high",
    ): "the same: both ends are solved anyway",
    (
        "explanations/compare.py",
        "values |= {value for value in plans.known_values if low < va",
        "low < value < high -> low < value <= high",
    ): "the same: both ends are solved anyway",
    (
        "planner/narrow.py",
        "MEASURED_AT_ONCE = 65_536",
        "65536 -> 65537",
    ): "only time: how many families are measured at once",
    (
        "planner/parts.py",
        "near = np.flatnonzero(bound <= self._limit(costs.rows))",
        "bound <= self._limit(costs.rows) -> bound < self._limit(cost",
    ): "the same: what takes as long as the best of its part is no better",
    (
        "planner/placer.py",
        "load, wait = np.max(least, axis=0) - [len(group.hops), 1]",
        "1 -> 2",
    ): "only time: a latency may be a nanosecond longer",
    (
        "explanations/decisions.py",
        "ENDLESS_GIB = 100_000.0",
        "100000.0 -> 99999.0",
    ): "the same: no plan needs as much",
    (
        "explanations/decisions.py",
        "ENDLESS_GIB = 100_000.0",
        "100000.0 -> 100001.0",
    ): "the same: no plan needs as much",
    (
        "explanations/judged_plan.py",
        "MOST_RANKED = 1_000_000",
        "1000000 -> 1000001",
    ): "only time: how many skeletons are counted for a rank",
    (
        "explanations/judged_plan.py",
        "MOST_RANKED = 1_000_000",
        "1000000 -> 999999",
    ): "only time: how many skeletons are counted for a rank",
}
"""By path, the line as it stands in the file, and what is changed in it: 60 letters."""


FROZEN = "@dataclass(frozen=True)"
FROZEN_SAME = "the same: nothing assigns to its fields"
"""The reason of every change of this line."""


def key(change: Change, source: str) -> tuple[str, str, str]:
    """Return a change as `REASONS` names it."""
    line = source.splitlines()[change.line - 1].strip()
    return change.path, line[:60], change.what[:60]


def reason(change: Change, source: str) -> str:
    """Return why no test has to see a change; nothing where it is not known."""
    named = key(change, source)
    return FROZEN_SAME if named[1] == FROZEN else REASONS.get(named, "")
