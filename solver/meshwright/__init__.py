"""Meshwright picks the fastest parallelism plan that fits, with a proof.

The way through the house, each room importing only those above it:

    reading/      text of others, read within limits, with the line of every value
    spec/         the user's question, as frozen models
    imports/      files of other tools about a cluster, as facts and as topologies
    loading/      from files, presets and imported clusters to a spec
    topology/     the cluster as a NetworkX graph; what groups pay on its links
    plans/        what a plan is, alone and as columns
    results/      what Meshwright answers, as data
    frameworks/   what each training framework launches, keeps and fuses
    rules/        the rules that a plan must keep
    cost/         bytes and seconds, pure functions over numpy columns
    check/        one plan re-scored in floats: the specification of what a plan is
    cpsat/        the exact model, on whole numbers alone
    placement/    which rank sits on which GPU of an irregular host
    lattice/      every legal skeleton (a plan without its per-stage choices)
    bounds/       lower and upper bounds, and branch and bound over the lattice
    economics/    around the step: the training run, the collectives, one matmul
    solver/       from a spec to the best plan and its proof
    explanations/ why a plan is rejected, what would fix it, at what price
    serving/      the same questions for inference
    report/       results as text, markdown, JSON and pictures
    sweeps/       many specs at once
    evidence/     predictions against measured runs, and calibration
    cli/          the commands
"""

__version__ = "0.1.0"

DEFAULT_PROFILE = "measured"
"""The bundled profile that commands use unless told otherwise."""
