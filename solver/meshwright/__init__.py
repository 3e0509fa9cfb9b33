"""Meshwright picks the fastest parallelism plan that fits, with a proof.

The way through the house, each step importing only what stands before it:

    spec/        the user's question, read from YAML, with lines in errors
    imports/     files of other tools about a cluster, as facts and as topologies
    topology/    the cluster as a NetworkX graph; what groups pay on its links
    cost/        bytes and seconds, pure functions over numpy columns
    legality.py  the rules of each framework, and pins, as data; shared_rules.py: those
                 that serving has too
    degrees.py   how many GPUs each axis has; coarse.py: times all other choices
    placement.py on which GPU of an irregular host each rank sits; orders.py: what for
    meshes.py    where the axes lie, listed when it is asked for (listing.py)
    lattice.py   every legal skeleton (a plan without its per-stage choices)
    scaling.py   seconds and bytes to whole numbers: the only rounding
    room.py      which rows have room for the model
    stages.py    what a stage can hold; bounds.py and splits.py: at least, and attained
    kin.py       families of rows with one bound; candidates.py: rows bounded both ways
    prune.py     branch and bound over the lattice
    link_limit.py  what a limit on links asks of a row at least
    cpsat/       the exact model over what is left, and the proof
    check.py     a plan re-scored in floats: the specification of what a plan is
    split_rules.py  rules that a plan keeps whatever it costs
    in_turn.py   skeletons proven one after the other, those with the least bounds first
    run.py       one lattice on its way to an outcome
    relaxation.py  a limit on links left out first, where unlike GPUs carry it
    deadline.py  when a solve ends with what it has: a time limit, Ctrl-C
    arrangements.py  ways to lay a job over unlike parts
    solve.py     all of it, in order
    ranks.py     where each rank of a plan runs
    ledger/      every collective of a plan, from the formulas that price them
    economics/   the run around the step: days, money, failures
    gemm/        one matmul: does it fit, how fast, how to cut it
    serving/     the same house for inference: passes, memory, stages, proof, check
    explain/     why a plan is rejected, what would mend it, at what price
    search/      many specs at once: cases, workers, the store, fronts, a page
    report/      outcomes and clusters as text, markdown and JSON; pictures
    escape.py    text of users as each kind of output shows it
    cli/         the commands

From Python: `meshwright.spec.load.load_spec`, `meshwright.solve.solve`,
`meshwright.check.check`.
"""

__version__ = "0.1.0"

DEFAULT_PROFILE = "measured"
"""The bundled profile that commands use unless told otherwise."""
