"""What a rank of each stage passes on in a step: every call, and the links it loads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.recomputed import traffic
from tests.recomputed.collectives import Call
from tests.recomputed.ranks import Link
from tests.recomputed.schedule import head_stage
from tests.recomputed.step import Parts, Step, sends


class Made(NamedTuple):
    """A collective that a rank takes part in, so many times a step."""

    phase: str
    call: Call
    times: int
    exposed_share: float
    """Of its seconds, what nothing hides."""


class Sum(NamedTuple):
    """All calls of a step that are alike."""

    times: int
    seconds: float
    exposed_s: float


def calls(step: Step, stage: int) -> Iterator[Made]:
    """Every collective of a stage's ranks, block by block."""
    case, m = step.case, step.case.plan.microbatches
    for is_leading in case.layers(stage):
        yield from _layer(step, is_leading, m)
    plan = case.plan
    for _ in range(plan.stages[stage].recompute_layers):
        if plan.recompute == "selective":
            for call in traffic.again(case):
                yield Made("recompute", call, m, 1.0)
            continue
        # The weights of a recomputed layer are there for its backward anyway.
        forward = list(traffic.layer(case, False, "forward"))
        made = _as_often(step, "forward", forward)
        shares = _exposed_shares(step, made, step.kinds[False].forward)
        for call in forward:
            yield Made("recompute", call, m, shares[call.part])
        for call in traffic.gathered_again(case):
            yield Made("recompute", call, m, 1.0)
    for is_leading in case.layers(stage):
        if is_leading:
            for call in traffic.lead_again(case):
                yield Made("recompute", call, m, 1.0)
    if stage == 0:
        yield from _embedding(step, m)
    if stage == head_stage(case.plan):
        yield from _head(step, m)
        for _ in range(case.model.mtp_layers):
            yield from _further(step, m)
    onward, back = sends(case, stage)
    for phase, sent, got in (("forward", onward, back), ("backward", back, onward)):
        for call in traffic.onward(case):
            yield Made(phase, call, m * sent, step.seen_of_sends)
        for call in traffic.received(case):
            yield Made(phase, call, m * got, step.seen_of_sends)


def _layer(step: Step, is_leading: bool, m: int) -> Iterator[Made]:
    case, shares = step.case, traffic.layer_shares(step.case, is_leading)
    found = step.kinds[is_leading]
    for phase, parts in (("forward", found.forward), ("backward", found.backward)):
        made = [
            *traffic.layer(case, is_leading, phase),
            *traffic.zero(case, shares, phase),
        ]
        yield from _made(step, phase, _as_often(step, phase, made), parts, m)
    yield from _made(step, "step end", traffic.step_end(case, shares), found.end, 1)


def _as_often(step: Step, phase: str, made: list[Call]) -> list[Call]:
    """Twice where another model, which stays as it was, has forwards, too."""
    is_twice = phase == "forward" and step.case.training.has_reference
    return made + made if is_twice else made


def _embedding(step: Step, m: int) -> Iterator[Made]:
    case, shares = step.case, traffic.embedding_shares(step.case)
    parts, end = step.embedding()
    both = {
        phase: [*traffic.embedding(case, phase), *traffic.zero(case, shares, phase)]
        for phase in traffic.PASSES
    }
    yield from _both_passes(step, both, parts, m)
    at_end = [*traffic.step_end(case, shares), *traffic.tied_tables(case)]
    yield from _made(step, "step end", at_end, end, 1)


def _head(step: Step, m: int) -> Iterator[Made]:
    case, shares = step.case, traffic.head_shares(step.case)
    parts, end = step.head()
    both = {
        phase: [*traffic.head(case, phase), *traffic.zero(case, shares, phase)]
        for phase in traffic.PASSES
    }
    yield from _both_passes(step, both, parts, m)
    at_end = [*traffic.step_end(case, shares), *traffic.tied_tables(case)]
    yield from _made(step, "step end", at_end, end, 1)


def _further(step: Step, m: int) -> Iterator[Made]:
    case, shares = step.case, traffic.further_shares(step.case)
    found = step.further
    both = {
        phase: [*traffic.further(case, phase), *traffic.zero(case, shares, phase)]
        for phase in traffic.PASSES
    }
    parts = {
        name: found.forward.get(name, 0.0) + found.backward.get(name, 0.0)
        for name in {*found.forward, *found.backward}
    }
    yield from _both_passes(step, both, parts, m)
    if case.plan.recompute == "selective":
        for call in traffic.again(case):
            yield Made("recompute", call, m, 1.0)
    elif case.plan.recompute != "none":
        made = list(traffic.further(case, "forward"))
        every = [call for one in both.values() for call in one]
        seen = _exposed_shares(step, every, parts)
        for call in made:
            yield Made("recompute", call, m, seen[call.part])
        for call in traffic.gathered_again(case):
            yield Made("recompute", call, m, 1.0)
    yield from _made(step, "step end", traffic.step_end(case, shares), found.end, 1)


def _both_passes(
    step: Step, both: Mapping[str, list[Call]], parts: Parts, m: int
) -> Iterator[Made]:
    """Embedding and head hide what they hide in both passes together."""
    both = {phase: _as_often(step, phase, one) for phase, one in both.items()}
    every = [call for one in both.values() for call in one]
    shares = _exposed_shares(step, every, parts)
    for phase, each in both.items():
        for call in each:
            yield Made(phase, call, m, shares[call.part])


def _made(
    step: Step, phase: str, given: Iterable[Call], parts: Parts, count: int
) -> Iterator[Made]:
    given = list(given)
    shares = _exposed_shares(step, given, parts)
    for call in given:
        yield Made(phase, call, count, shares[call.part])


def _exposed_shares(step: Step, given: Iterable[Call], parts: Parts) -> Parts:
    """Of each part: how much of its traffic is seen in the step."""
    all_s = step.seconds(given)
    return {
        part: parts[part] / seconds if seconds else 0.0
        for part, seconds in all_s.items()
    }


Key = tuple[str, str, str, str, int, float]
"""Phase, part, operation, group, ranks, and the bytes of a call to twelve digits."""


def key(
    phase: str, part: str, operation: str, group: str, ranks: int, size: float
) -> Key:
    return phase, part, operation, group, ranks, float(f"{size:.11e}")


def summed(step: Step, stage: int) -> dict[Key, Sum]:
    """The calls of a stage, alike ones together; those of one rank are none."""
    found: dict[Key, Sum] = {}
    for phase, call, count, share in calls(step, stage):
        ranks = step.network.members(call)
        if ranks < 2 or not call.whole_bytes or not count:
            continue
        part = "recompute" if phase == "recompute" else call.part
        result = key(phase, part, call.operation, call.group, ranks, call.whole_bytes)
        seconds = count * step.network.seconds(call)
        before = found.get(result, Sum(0, 0.0, 0.0))
        found[result] = Sum(
            before.times + count,
            before.seconds + seconds,
            before.exposed_s + share * seconds,
        )
    return found


def group_bytes(step: Step, stage: int) -> dict[str, float]:
    """What a rank of a stage passes on in each kind of group, one way.

    Links carry both ways at once, so that of what is sent onward and back along a
    pipeline the larger counts.
    """
    passed: dict[str, float] = defaultdict(float)
    sent: dict[str, float] = defaultdict(float)
    for phase, call, count, _ in calls(step, stage):
        size = count * step.network.passed_bytes(call)
        if call.operation == "send":
            sent[phase] += size
        else:
            passed[call.group] += size
    passed["pp"] += max(sent.values(), default=0.0)
    return dict(passed)


def link_seconds(step: Step, stage: int) -> dict[tuple[int, str], float]:
    """How long the links of each level carry each group's traffic, at rated speed."""
    found: dict[tuple[int, str], float] = {}
    for group, size in group_bytes(step, stage).items():
        loads = step.network.paths[group].loads
        for level in range(len(step.case.spec.cluster.levels)):
            result = [load for link, load in loads.items() if link[0] == level]
            found[level, group] = size * max(result, default=0.0)
    return found


def unlike_links(step: Step) -> list[Link]:
    """Links of a level that carry less than its busiest: on a tree there are none."""
    found = []
    for path in step.network.paths.values():
        for link, load in path.loads.items():
            alike = [one for at, one in path.loads.items() if at[0] == link[0]]
            if load < max(alike) * (1 - 1e-9):
                found.append(link)
    return found
