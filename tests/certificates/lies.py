"""What is changed in a certificate by one who knows the format, and seals it anew."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from meshwright.certificates.certificate import canonical, sealed
from meshwright_verify import PARTS

Parts = dict[str, Any]
Names = tuple[str, ...]
Place = tuple[Any, ...]
"""Keys of mappings and indices of lists, from the outside in."""
Lie = Callable[[Parts, Random], None]


def parts_of(data: bytes) -> Parts:
    found: Parts = json.loads(zlib.decompress(data, 31))
    return found


def resealed(found: Parts) -> bytes:
    """Return the file of a liar, who states the hashes of what was changed."""
    return sealed({name: found[name] for name in PARTS}, found["version"])


def nodes(node: Parts) -> Iterator[Parts]:
    """Yield the branches of a cover."""
    yield node
    for _, child in node["of"]:
        if "of" in child:
            yield from nodes(child)


def leaves(found: Parts, kind: str) -> list[Parts]:
    below = [child for node in nodes(found["cover"]) for _, child in node["of"]]
    return [leaf for leaf in below if kind in leaf]


def leaf_of(found: Parts, kind: str, choice: Random) -> Parts:
    return choice.choice(leaves(found, kind))


def _drop_a_group(found: Parts, choice: Random) -> None:
    several = [node["of"] for node in nodes(found["cover"]) if len(node["of"]) > 1]
    of = choice.choice(several)
    of.remove(choice.choice(of))


def _cover_twice(found: Parts, choice: Random) -> None:
    of = choice.choice([node["of"] for node in nodes(found["cover"])])
    of.append(choice.choice(of))


def _raise_a_bound(found: Parts, choice: Random) -> None:
    leaf_of(found, "slower", choice)["slower"] += choice.randint(10**12, 10**15)


def _hold_less(found: Parts, choice: Random) -> None:
    leaf_of(found, "memory", choice)["memory"] -= choice.randint(1, 9)


def _need_more(found: Parts, choice: Random) -> None:
    """Say that a plan that fits does not, with its terms as they are."""
    leaf = leaf_of(found, "slower", choice)
    plan = found["claims"]["fastest"]
    leaf.clear()
    leaf.update(memory=0, terms=plan["terms"])


def _name_a_worse_plan(found: Parts, choice: Random) -> None:
    """Claim the plan of another leaf, which takes longer, as the fastest."""
    claims = found["claims"]
    plan, more = dict(claims["fastest"]), choice.randint(1, 9) * 10**9
    times = [list(run) for run in plan["terms"]["times"]]
    times[0][1] += more
    ticks = plan["ticks"] + more * times[0][0]
    terms = {**plan["terms"], "times": times}
    claims["fastest"] = plan | {"terms": terms, "ticks": ticks}


def _understate_the_plan(found: Parts, choice: Random) -> None:
    found["claims"]["fastest"]["ticks"] -= choice.randint(1, 10**9)


def _widen_the_tolerance(found: Parts, choice: Random) -> None:
    found["claims"]["recommended"]["within"] = choice.uniform(0.5, 0.99)


def _change_criteria(found: Parts, choice: Random) -> None:
    found["claims"]["recommended"]["criteria"].pop(choice.randrange(2))


def _hide_the_plan(found: Parts, _choice: Random) -> None:
    found["claims"] = dict.fromkeys(found["claims"]) | {"status": "infeasible"}


def _state_the_batch(found: Parts, choice: Random) -> None:
    """State as a fact what the spec says."""
    found["facts"]["batch"] = choice.randint(2, 9)


def _refuse_by_a_rule(found: Parts, choice: Random) -> None:
    leaf = leaf_of(found, "slower", choice)
    leaf.clear()
    leaf["rule"] = 0


def _refuse_by_no_rule(found: Parts, choice: Random) -> None:
    leaf_of(found, "rule", choice)["rule"] = choice.choice([-1, 10**6])


def _borrow_terms(found: Parts, choice: Random) -> None:
    one, other = choice.sample(leaves(found, "slower"), 2)
    one["terms"] = other["terms"]


def _lose_layers(found: Parts, choice: Random) -> None:
    choice.choice(found["claims"]["fastest"]["split"])[0] -= 1


def _outgrow_memory(found: Parts, choice: Random) -> None:
    found["claims"]["fastest"]["terms"]["stages"][0][3] *= choice.randint(100, 1_000)


def _run_on_unknown_gpus(found: Parts, choice: Random) -> None:
    kinds = len(found["facts"]["capacity_kib"])
    leaf_of(found, "memory", choice)["terms"]["stages"][0][1] = kinds


def _leave_times_out(found: Parts, choice: Random) -> None:
    del leaf_of(found, "slower", choice)["terms"]["times"]


LIES: dict[Lie, str] = {
    _drop_a_group: r"cover at .*: .* is not covered",
    _cover_twice: r"cover at .*stands twice",
    _raise_a_bound: r"cover at .*some split may take less than",
    _hold_less: r"cover at .*the stages hold",
    _need_more: r"cover at ",
    _name_a_worse_plan: r"cover at .*below .*, the least claimed",
    _understate_the_plan: r"claims\.fastest: they add up",
    _widen_the_tolerance: r"cover at |claims\.recommended",
    _change_criteria: r"claims\.recommended: the criteria",
    _hide_the_plan: r"cover at .*, the least claimed",
    _state_the_batch: r"facts: batch is missing, or is too much",
    _refuse_by_a_rule: r"cover at .*does not refuse all of it",
    _refuse_by_no_rule: r"cover at .*there is no such rule",
    _borrow_terms: r"cover at .*of a skeleton elsewhere",
    _lose_layers: r"claims\.fastest: layers are lost",
    _outgrow_memory: r"claims\.fastest, stage 0: it does not hold",
    _run_on_unknown_gpus: r"cover at .*are not of the GPUs",
    _leave_times_out: r"cover at .*its times are missing",
}
"""What a liar who knows the format changes, and where that is found."""

OF_ANY = (
    *(_drop_a_group, _cover_twice, _hold_less, _state_the_batch),
    _run_on_unknown_gpus,
)
"""Those that can be told of a spec that nothing fits, too."""


def _serve_more_groups(found: Parts, choice: Random) -> None:
    """Say that groups of requests are another number, which no size of a group has."""
    claim = found["claims"]["fastest"]["terms"]
    claim["at"][3] = found["spec"]["inference"]["batch"] + choice.randint(1, 9)


def _serve_fewer_requests(found: Parts, choice: Random) -> None:
    """Serve fewer requests: groups of other numbers are then left out."""
    found["spec"]["inference"]["batch"] = choice.randint(1, 9)


def _train_instead(found: Parts, _choice: Random) -> None:
    del found["spec"]["inference"]


OF_BOTH: tuple[Lie, ...] = (
    *(*OF_ANY, _raise_a_bound, _need_more, _understate_the_plan, _hide_the_plan),
    *(_name_a_worse_plan, _lose_layers, _outgrow_memory, _leave_times_out),
)

OF_SERVING: dict[Lie, str] = {
    **{lie: LIES[lie] for lie in OF_BOTH},
    _serve_more_groups: r"claims\.fastest: \d+ is outside",
    _serve_fewer_requests: r"(claims\.fastest|cover at .*): .*outside",
    _train_instead: r"a part has another form",
}
"""The same of serving."""


def _praise_a_choice(found: Parts, choice: Random) -> None:
    """Say that another choice takes less than the fastest plan, and so is better."""
    other = choice.choice([one for one in found["others"] if "kernels" in one])
    other["least"] = choice.randint(1, 10**6)


def _belittle_a_choice(found: Parts, choice: Random) -> None:
    other = choice.choice([one for one in found["others"] if "kernels" in one])
    other["least"] += choice.randint(10**12, 10**15)


def _belittle_a_cover(found: Parts, choice: Random) -> None:
    other = choice.choice([one for one in found["others"] if "cover" in one])
    other["least"] += choice.randint(10**12, 10**15)


def _say_that_a_choice_fits_nothing(found: Parts, choice: Random) -> None:
    choice.choice([one for one in found["others"] if "cover" in one])["least"] = None


def _ask_otherwise(found: Parts, choice: Random) -> None:
    other = choice.choice(found["others"])
    other["spec"]["model"]["n_layers"] += choice.randint(1, 9)


def _run_on_other_gpus(found: Parts, choice: Random) -> None:
    other = choice.choice([one for one in found["others"] if "kernels" in one])
    other["kernels"][choice.randrange(5)] *= choice.choice([0, -1, 2])


def _set_a_rate(found: Parts, choice: Random) -> None:
    """Say what a second costs where only GPUs and time count."""
    choice.choice(found["others"])["facts"]["rates"] = {"step_s": choice.randint(2, 9)}


OF_CHOICES: dict[Lie, str] = {
    _praise_a_choice: r"others\[\d+\]: it may have less usd_per_mtoken",
    _belittle_a_choice: r"others\[\d+\]: its kernels take",
    _belittle_a_cover: r"others\[\d+\] at .*(may take less than|smaller)",
    _say_that_a_choice_fits_nothing: rf"others\[\d+\] at .*may take less than {2**48}",
    _ask_otherwise: r"others\[\d+\]: of another question",
    _run_on_other_gpus: r"others\[\d+\]: its kernels (are of no degrees|take)",
    _set_a_rate: r"rates: step_s is missing, or is too much",
}
"""The same of a spec that leaves numbers open."""

OF_PARTS: dict[Lie, str] = {
    lie: (LIES | OF_CHOICES)[lie]
    for lie in (
        *(_drop_a_group, _raise_a_bound, _hold_less, _run_on_unknown_gpus),
        *(_belittle_a_cover, _say_that_a_choice_fits_nothing, _ask_otherwise),
    )
}
"""The same of unlike parts, whose other uses are choices too."""

TAKEN_BACK = {("claims", name) for name in ("cheapest", "recommended", "near")}
"""Claims without which a certificate says less, and is right."""


ODD_VALUES: tuple[Any, ...] = (None, -1, True, "", [], {}, 1.5, 10**30)


def is_trusted(names: Names, part: Any) -> bool:
    """Return whether a certificate is taken on trust in what stands somewhere.

    `part` is the item of a part: of rules with a table, the name is a label.
    """
    is_fact = names[0] in ("facts", "kernels")
    is_text = names[0] == "rules" and (names[1:2] != ("name",) or "table" in part)
    return is_fact or is_text or "terms" in names or names in TAKEN_BACK


def places(node: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the places of all values below a node."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield (*path, key)
        if isinstance(node[key], dict | list):
            yield from places(node[key], (*path, key))


def mutants(
    data: bytes, choice: Random, *, of_trusted: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Yield certificates in which a value is replaced, dropped or doubled, without end.

    Each comes with what was changed: never what is taken on trust, or that alone. What
    does not change when it is written canonically is left out.
    """
    known: dict[Names, list[Place]] = {}
    parts = {name: part for name, part in parts_of(data).items() if name in PARTS}
    for place in places(parts):
        names = tuple(dict.fromkeys(name for name in place if isinstance(name, str)))
        # Other choices have facts, rules and covers, too.
        is_other = place[0] == "others" and len(place) > 2
        within: Any = parts["others"][place[1]] if is_other else parts
        first, *rest = place[2:] if is_other else place
        part = within[first][rest[0]] if rest else None
        of_part = names[1:] if is_other else names
        if len(place) > 1 and is_trusted(of_part, part) == of_trusted:
            known.setdefault(names, []).append(place)
    while True:
        found = parts_of(data)
        node: Any = found
        *above, key = choice.choice(known[choice.choice([*known])])
        for step in above:
            node = node[step]
        before, odd = canonical(node), choice.choice(ODD_VALUES)
        change = choice.choice(("replaced", "dropped", "doubled"))
        if change == "dropped":
            del node[key]
        elif change == "doubled" and isinstance(key, int):
            node.insert(key, node[key])
        else:
            node[key] = odd
        if canonical(node) != before:
            yield f"{(*above, key)} {change}, {odd!r}", resealed(found)
