"""From the rows of a job to a proven plan.

    rows          every legal skeleton of a job: unplaced, and on its meshes
    families, candidates, narrow
                  bounds leave as many rows as the model holds
    model         CP-SAT: the decisions of a plan by name, and what they cost
    plans, best_split, split_model
                  the split of one row's layers over its stages
    prove         the model chooses, a proven split cuts the model
    answer, solve from a spec to an outcome with its certificate

A bound is *admissible* if it never says more than what it stands for: a lower bound on
the step time of a skeleton is no more than the time of any split of its layers that
fits, and an upper bound is the time of a split that exists. A skeleton whose lower
bound is above the upper bound of another one cannot be the best, and is left out.

With l_e layers on stage e, of which r_e are recomputed, a step takes

    T(l, r) = sum_e (l_e a + r_e b + c_e)            filling the pipeline
              + max_e (l_e A + r_e B + C_e)          the pace of the slowest stage
              + max_e (l_e s + S_e)                  the end of the step

where a, b and c_e are the ticks of a layer, of a recomputed layer, and of an end of the
model with its sends, weighted as the schedule fills the pipeline; A, B and C_e are the
same ticks, weighted as it repeats them (`cost.schedule.step_weights`); s and S_e are
what a stage sends after its last backward. Why each bound is admissible:

- `split_bounds.time_only_bound` leaves memory aside. All layers must be somewhere, so
  the sum is L a + sum c_e whatever the split; recomputation only adds. A maximum is no
  less than the mean, so the pace is at least (L A + sum C_e) / pp; and some stage has
  at least ceil(L / pp) layers, which bounds pace and end of step once more.
- `compute_bound` needs no lattice: whole layers on whole stages, and the filling of the
  pipeline. Choices of an open spec share it.
- `families` are skeletons that differ only in recomputation and offload. Neither
  shortens a step (`cost.offload.is_never_faster`), so the time-only bound of the
  skeleton that frees nothing holds for the whole family.
- `split_bounds.lower_bound` adds memory. At a pace t stage e takes at most n_e(t)
  layers: more do not fit, or need so many recomputed layers that the stage is slower
  than t. n_e is concave in t while recomputation is counted in fractions, which allows
  more than whole layers do. The least t with sum n_e(t) >= L is thus no more than the
  pace of any split that fits. A split that beats the best plan known has a pace below
  some limit, and within that limit memory forces a least number of recomputed layers.
- `side_limits` bounds a step by its busiest link: seconds on the link over the share of
  the step that `limits.max_link_utilisation` allows. `link_bounds` says why no split
  of some skeletons keeps that.
- `split_bounds.construct_split` levels layers under the caps n_e, and recomputes what
  memory forces. The time of that split is exact, and bounds the best from above.
- dominated skeletons (`narrow`) recompute or offload although the same skeleton fits
  without, where every stage has the same layers anyway: they take no less time. What is
  recomputed takes no less either where weights or activations are offloaded.
- `memory_fit.KnownFits` keeps which skeletons of a family fit, for all solves of one
  explanation: memory depends on no link, and what does not fit fits with less memory
  neither.
- An unplaced skeleton, which has no mesh yet, is priced with every group of ranks on
  the links that are best for it alone (`rows.in_best_case`): no mesh gives all
  groups less at once.

A batch is placed in two pieces, the least lower bounds first. What the second leaves
out has a lower bound above the time of a plan that the first has found.

Everything is in whole ticks and chunks (`integer_costs`), the same numbers that CP-SAT
sees; bounds from floats are loosened by more than float arithmetic can be off
(`split_bounds.round_up_to_tick`). `tests/planner` holds every bound against what it
stands for.
"""
