"""A step: what every stage takes per micro-batch and at the end, and all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tests.recomputed import hiding, lora, muon, traffic
from tests.recomputed.case import Case
from tests.recomputed.collectives import Call, Network
from tests.recomputed.copies import copies, layer_copies, reference_copies
from tests.recomputed.kernels import (
    Pass,
    embedding_seconds,
    further_seconds,
    head_seconds,
    layer_seconds,
)
from tests.recomputed.parameters import Share
from tests.recomputed.ranks import groups, paths
from tests.recomputed.schedule import Seconds, closed_form, head_stage, path, run

Parts = dict[str, float]


class Stage(NamedTuple):
    """Seconds of one stage."""

    parts: Parts
    """Per micro-batch."""
    end: Parts
    """When all micro-batches are done."""
    tasks: Seconds
    """Of a micro-batch, as the schedule runs it."""


class Layer(NamedTuple):
    """Seconds of one layer: of each pass, and when all micro-batches are done."""

    forward: Parts
    backward: Parts
    end: Parts
    weights: float
    """Of the backward: what may wait, for only gradients of weights need it."""
    again: float
    """What selective recomputation runs again."""
    mlp_again: float
    """The same in the MLP of a layer without experts."""
    whole_again: float
    """What full recomputation runs again, but for gathers of its input."""
    left: float
    """Of the forward: compute and waits that hide nothing."""


class Step:
    """One step of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.network = Network(case, groups(case), paths(case))

    def layer(self, is_leading: bool, is_further: bool = False) -> Layer:
        """What a layer that the model repeats takes, or another kind of one."""
        case, shares = self.case, traffic.layer_shares(self.case, is_leading)
        if is_further:
            shares = traffic.further_shares(case)

        def within(name: str) -> list[Call]:
            if is_further:
                return list(traffic.further(case, name))
            return list(traffic.layer(case, is_leading, name))

        found = layer_seconds(case, case.is_dense(is_leading))
        moved = layer_copies(case, shares)

        def passed(name: str, kernels: Pass, copies_s: float) -> hiding.Seen:
            calls = within(name)
            calls += traffic.zero(case, shares, name)
            parts = self.with_gradients(calls)
            parts |= {"compute": kernels.seconds, "offload": copies_s}
            host_s = self.dispatch_s(kernels, 1 if name == "forward" else 2)
            host_s += 0.5 * case.host_s * self.started(calls)
            host_s = 0.0 if case.replays else host_s
            seen = hiding.in_pass(case, parts, kernels, host_s)
            seen.parts["offload"] += moved.between
            return seen

        forward = passed("forward", found.forward, moved.forward)
        # A whole forward again: what is gathered or fetched is there.
        calls = within("forward")
        host_s = self.dispatch_s(found.forward, 1)
        host_s += 0.5 * case.host_s * self.started(calls)
        fetched = ("zero", "offload", "host")
        again_s = sum(s for name, s in forward.parts.items() if name not in fetched)
        again_s += 0.0 if case.replays else found.forward.awaited
        # Once in a segment of layers: the others' results are read by the next.
        again_s -= found.unneeded / case.plan.recompute_segment
        whole_again_s = max(again_s, 0.0 if case.replays else host_s)
        backward = passed("backward", found.backward, moved.backward)
        # The host starts a backward's two halves, and both hide traffic. What is put
        # off leaves the backward for a bubble, where nothing is passed on.
        half_s = backward.wait / 2 - backward.hiding / 2
        weights_s = max(min(found.weights + half_s, backward.left / 2), 0.0)
        end = self.end(shares, [], hide_s=backward.left)
        end["optimizer"] += muon.layer_seconds(case, case.is_dense(is_leading))
        end["optimizer"] += muon.joined_seconds(case) if is_further else 0.0
        passes = forward.parts, backward.parts
        again = found.again, found.mlp_again, whole_again_s
        if case.training.has_reference:
            fetched_s = reference_copies(case, shares).forward
            calls = [*within("forward"), *traffic.zero(case, shares, "forward")]
            more = self.forward_only(found.forward, calls, fetched_s)
            passes = _sum(forward.parts, more), backward.parts
        return Layer(*passes, end, weights_s, *again, forward.left)

    def forward_only(self, kernels: Pass, calls: list[Call], copies_s: float) -> Parts:
        """What a layer takes of a model that is not trained."""
        host_s = self.dispatch_s(kernels, 1) + 0.5 * self.case.host_s * self.started(
            calls
        )
        parts = self.with_gradients(calls)
        parts |= {"compute": kernels.seconds, "offload": copies_s}
        host_s = 0.0 if self.case.replays else host_s
        return hiding.in_pass(self.case, parts, kernels, host_s).parts

    def dispatch_s(self, kernels: Pass, passes: int) -> float:
        """What the host takes to start kernels.

        Models that ZeRO-2 or 3 trains whole, or adapters, are those of Transformers.
        ZeRO-3 has hooks at each module with weights: nine of a layer, and the two
        matrices of each adapter.
        """
        case, seconds = self.case, kernels.dispatch
        if case.spec.framework != "deepspeed":
            return seconds
        has_adapters = case.training.lora is not None
        if case.plan.tp == case.plan.pp == 1 and (case.plan.zero >= 2 or has_adapters):
            seconds *= 2.0 / 4.5
        if case.plan.zero == 3:
            modules = 9 + 2 * len([*lora.pairs(case, case.model.moe is None)])
            seconds += passes * 0.8 * modules * case.host_s
        return seconds

    def started(self, calls: Iterable[Call]) -> int:
        """How many collectives the host starts."""
        return sum(
            call.whole_bytes > 0 and self.network.members(call) > 1 for call in calls
        )

    def embedding(self) -> tuple[Parts, Parts]:
        """Both passes as one; nothing runs beside the first gather of a step."""
        case, shares = self.case, traffic.embedding_shares(self.case)
        calls = {
            passed: [
                *traffic.embedding(case, passed),
                *traffic.zero(case, shares, passed),
            ]
            for passed in traffic.PASSES
        }
        parts = self._outside_layers(shares, calls, embedding_seconds(case), 0.0)
        return parts, self.end(shares, list(traffic.tied_tables(case)), 0.0)

    def head(self) -> tuple[Parts, Parts]:
        case, shares = self.case, traffic.head_shares(self.case)
        calls = {
            passed: [*traffic.head(case, passed), *traffic.zero(case, shares, passed)]
            for passed in traffic.PASSES
        }
        compute_s = head_seconds(case)
        parts = self._outside_layers(shares, calls, compute_s, compute_s)
        return parts, self.end(shares, list(traffic.tied_tables(case)), 0.0)

    def _outside_layers(
        self,
        shares: list[Share],
        calls_by_pass: dict[str, list[Call]],
        compute_s: float,
        hide_s: float,
    ) -> Parts:
        calls = [call for calls in calls_by_pass.values() for call in calls]
        moved, again_s = copies(self.case, shares), 0.0
        if self.case.training.has_reference:
            # The forward is a third of it, and has messages of its own.
            again_s = reference_copies(self.case, shares).forward
            compute_s, hide_s = compute_s + compute_s / 3, hide_s + hide_s / 3
            calls += calls_by_pass["forward"]
        parts = self.with_gradients(calls)
        moved_s = moved.forward + moved.backward + again_s
        parts |= {"compute": compute_s, "offload": moved_s}
        return hiding.beside(self.case, parts, hide_s)

    def end(self, shares: list[Share], tied: list[Call], hide_s: float) -> Parts:
        """Gradients, the update, and weights; the host's update is its own part."""
        case, moved = self.case, copies(self.case, shares)
        calls = [*traffic.step_end(case, shares), *tied]
        dp = {"gradients": 0.0, "parameters": 0.0}
        for call in calls:
            of_weights = call.operation in ("all_gather", "broadcast")
            is_weights = of_weights and case.plan.zero > 0
            kind = "parameters" if is_weights else "gradients"
            dp[kind] += self.network.seconds(call)
        dp_s, down_s = hiding.at_end(case, dp, moved.end, hide_s)
        update_s = update_seconds(case, shares)
        # The host begins when the GPU does; what it takes longer is its own part.
        longer_s = max(moved.update, update_s) - update_s
        return {"dp": dp_s, "optimizer": update_s, "offload": down_s + longer_s}

    def seconds(self, calls: Iterable[Call]) -> Parts:
        parts: Parts = defaultdict(float)
        for call in calls:
            parts[call.part] += self.network.seconds(call)
        return dict(parts)

    def with_gradients(self, calls: list[Call]) -> Parts:
        """The same, with what ZeRO takes of gradients as a part of its own."""
        reduced = [call for call in calls if call[:2] == ("zero", "reduce_scatter")]
        parts, gradients_s = self.seconds(calls), sum(self.seconds(reduced).values())
        if reduced:
            parts |= {"zero": parts["zero"] - gradients_s}
        return parts | {"zero gradients": gradients_s}

    @cached_property
    def kinds(self) -> dict[bool, Layer]:
        """What a layer takes, by whether it is a leading one."""
        return {is_leading: self.layer(is_leading) for is_leading in (False, True)}

    @cached_property
    def further(self) -> Layer:
        """A layer that predicts one token more, with its logits in the forward."""
        found = self.layer(False, is_further=True)
        beside = {"compute": further_seconds(self.case)}
        return found._replace(forward=_sum(found.forward, beside))

    @cached_property
    def stages(self) -> list[Stage]:
        return [self.stage(number) for number in self.case.stages]

    def stage(self, number: int) -> Stage:
        case, parts, end = self.case, _nothing(), _nothing()
        forward_s = weights_s = 0.0
        for is_leading in case.layers(number):
            found = self.kinds[is_leading]
            _add(parts, found.forward)
            _add(parts, found.backward)
            _add(end, found.end)
            weights_s += found.weights
            # A leading layer's forward counts as a repeated one's; what it takes more
            # or less in both passes is split as embedding and head are.
            forward_s += sum(self.kinds[False].forward.values())
            if is_leading:
                again_s = self.kinds[True].mlp_again
                calls = traffic.lead_again(case)
                again_s += sum(self.network.seconds(call) for call in calls)
                parts["recompute"] += again_s
                kinds = self.kinds[True], self.kinds[False]
                dense_s, usual_s = (
                    sum(kind.forward.values()) + sum(kind.backward.values())
                    for kind in kinds
                )
                forward_s += (dense_s - usual_s + again_s) / 3
        for _ in range(case.plan.stages[number].recompute_layers):
            parts["recompute"] += self.recompute(self.kinds[False])
        if number == 0:
            first, at_end = self.embedding()
            end["host"] += 50 * case.host_s
            _add(parts, first)
            _add(end, at_end)
            forward_s += sum(first.values()) / 3
        if number == head_stage(case.plan):
            last, at_end = self.head()
            _add(parts, last)
            _add(end, at_end)
            forward_s += sum(last.values()) / 3
            for _ in range(case.model.mtp_layers):
                passes = self.further.forward, self.further.backward
                again = {"recompute": self.recompute(self.further)}
                if case.plan.recompute == "none":
                    again = {}
                for more in (*passes, again):
                    _add(parts, more)
                    forward_s += sum(more.values()) / 3
                _add(end, self.further.end)
        onward, back = sends(case, number)
        send_s = self._send_s
        parts["pp"] += (onward + back) * send_s
        forward_s += onward * send_s
        backward_s = sum(parts.values()) - forward_s - weights_s
        return Stage(parts, end, Seconds(forward_s, backward_s, weights_s))

    def recompute(self, layer: Layer) -> float:
        """A forward again, whose weights are there for the backward anyway."""
        if self.case.plan.recompute == "selective":
            calls = traffic.again(self.case)
            return layer.again + sum(self.network.seconds(call) for call in calls)
        gathered = traffic.gathered_again(self.case)
        gathered_s = sum(self.network.seconds(call) for call in gathered)
        return gathered_s + layer.whole_again

    @property
    def _send_s(self) -> float:
        calls = [*traffic.onward(self.case), *traffic.received(self.case)]
        all_s = sum(self.network.seconds(call) for call in calls)
        host_s = 1.5 * self.case.host_s if self.case.plan.pp > 1 else 0.0
        return all_s * self.seen_of_sends + host_s

    @cached_property
    def seen_of_sends(self) -> float:
        """Share of a send that interleaved stages see: what a layer leaves of it.

        A forward hides two sends by what it has left; a backward hides the step's end.
        """
        if self.case.plan.vpp == 1 or "pp" not in self.case.overlap:
            return 1.0
        calls = [*traffic.onward(self.case), *traffic.received(self.case)]
        all_s = sum(self.network.seconds(call) for call in calls)
        each_s = self.kinds[False].left / 2
        return 1 - min(self.case.rates["gather_overlap"], each_s / all_s)

    @property
    def pipeline_s(self) -> float:
        """What the papers give for all micro-batches."""
        plan, stages = self.case.plan, self.stages
        each = [sum(one.parts.values()) for one in stages]
        return closed_form(plan, each, [one.tasks.weights for one in stages])

    @property
    def end_s(self) -> float:
        return max(sum(one.end.values()) for one in self.stages)

    @property
    def step_s(self) -> float:
        return self.pipeline_s + self.end_s

    @property
    def schedule_s(self) -> float:
        """The same with every task run."""
        tasks = [one.tasks for one in self.stages]
        return run(self.case.plan, tasks) + self.end_s

    def parts_at(self, slowest: int, longest: int) -> Parts:
        """The step by part, as two stages see it: the slowest, and the last to end."""
        m, stages = self.case.plan.microbatches, self.stages
        parts = _nothing()
        _add(parts, stages[slowest].parts, m)
        parts["bubble"] = self.pipeline_s - m * sum(stages[slowest].parts.values())
        _add(parts, stages[longest].end)
        return dict(parts)


def sends(case: Case, stage: int) -> tuple[int, int]:
    """How often a stage sends a micro-batch on, and its gradients back.

    A micro-batch passes all stages once per chunk; what stays on a stage is not sent.
    """
    onward = back = 0
    for (at, _), (after, _) in pairwise(path(case.plan)):
        onward += at == stage != after
        back += after == stage != at
    return onward, back


def update_seconds(case: Case, shares: list[Share]) -> float:
    """State is read and written, gradients are read, as fast as memory streams."""
    of_gpu = 1.0
    if case.plan.offload != "none":
        of_gpu -= case.training.offload_fraction
    gpu, moved = case.spec.cluster.topology.gpu, 0.0
    for share in shares:
        params = share.numbers / (share.shards if case.plan.zero >= 1 else 1)
        state = share.state
        moved += of_gpu * params * (state.updated + state.by_operations)
    return moved / (gpu.memory_gb_s * 1e9 * case.rates["memory"])


def _sum(*several: Parts) -> Parts:
    total = _nothing()
    for parts in several:
        _add(total, parts)
    return dict(total)


def _nothing() -> Parts:
    return defaultdict(float)


def _add(parts: Parts, more: Mapping[str, float], times: float = 1) -> None:
    for name, seconds in more.items():
        parts[name] += times * seconds
