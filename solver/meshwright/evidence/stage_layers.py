"""The layers of every pipeline stage, also where a publication does not list them."""

from __future__ import annotations

from meshwright.evidence.assumptions import Assumptions, Unpriced
from meshwright.evidence.run import Run
from meshwright.frameworks.base.registry import framework_of
from meshwright.spec.spec import Spec


def layers_of(run: Run, spec: Spec, vpp: int, assumed: Assumptions) -> tuple[int, ...]:
    """Return the layers of each stage, and note uneven ones as assumed.

    Raises:
        Unpriced: the stages outnumber the layers, or are not those of the model.
    """
    published, total = run.config.layers_per_stage, run.model.n_layers or 0
    pp = run.config.pp or 1
    if published is not None:
        if (len(published), sum(published)) != (pp, total):
            what = f"{sum(published)} layers in {len(published)} stages"
            raise Unpriced(f"config.layers_per_stage: {what}, not {total} in {pp}")
        return published
    each, over = divmod(total, pp * vpp)
    if not over:
        return (each * vpp,) * pp
    counts_ends = framework_of(spec).counts_ends_as_layers
    ends = _with_ends(total, pp, vpp) if counts_ends else ()
    layers = ends or _filled(total, pp, vpp) or _even(total, pp)
    if vpp > 1 and sum(layers) != total:
        raise Unpriced(f"config.vp: {total} layers in {pp} x {vpp} chunks")
    if min(layers) < 1:
        raise Unpriced(f"config.pp: {pp} stages for {total} layers")
    return assumed.value("config.layers_per_stage", layers)


def _with_ends(total: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return stages in which embedding and head count as one layer each; else none.

    As in Megatron-LM's account_for_embedding_in_pipeline_split, GLM-130B and Llama 3
    405B (Dubey et al. 2024, section 3.3.2). DeepSpeed's pipeline counts transformer
    layers alone (partition_method 'type:transformer').
    """
    each, over = divmod(total + 2, pp * vpp)
    if over or pp == 1 or each * vpp < 2:
        return ()
    middle = each * vpp
    return (middle - 1, *[middle] * (pp - 2), middle - 1)


def _filled(total: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return interleaved stages of equal chunks, only the last of which is shorter.

    Megatron-Bridge splits the 61 layers of DeepSeek-V3 like this.
    """
    each = -(-total // (pp * vpp))
    last = total - each * (pp * vpp - 1)
    if vpp == 1 or last < 1:
        return ()
    return (*[each * vpp] * (pp - 1), each * (vpp - 1) + last)


def _even(total: int, pp: int) -> tuple[int, ...]:
    """Return stages that are as even as possible, the first ones with a layer more."""
    least, over = divmod(total, pp)
    return tuple(least + (stage < over) for stage in range(pp))
