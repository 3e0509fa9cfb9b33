"""Checks a certificate of Meshwright: `python meshwright_verify.py cert.json.gz`.

A certificate says that no plan is better than the one it names, or that none fits. This
file checks it with the standard library alone and shares no code with Meshwright, whose
`docs/certificates.md` describes the format:

    1. the file       its bytes and parts have the hashes that it states
    2. the decisions  which values each may have, given those before it
    3. the rules      which plans may not be, by arithmetic or by a table
    4. the terms      what a plan takes and holds; that no split of its layers is faster
    5. the cover      a tree of decisions whose leaves leave no plan out
    6. the claims     fastest, recommended, all plans within a share, none fits

A *skeleton* has a value for each of the `DECISIONS`; a *split* says how many layers
each pipeline stage has and recomputes. A leaf of the tree refuses all skeletons below
it: by a rule, by memory, or because they are slower than what is claimed. `told` says
what is taken on trust: above all the terms, nanoseconds and KiB of layers and sends.
What follows from terms is computed here, and so is every bound.
"""

from __future__ import annotations

import json
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from hashlib import sha256
from itertools import product
from math import gcd, prod
from typing import Any

# ---------------------------------------------------------------- 1. the file
Path = tuple[int, ...]  # values of the first decisions
FORMAT = "meshwright-certificate-1"
PARTS = ("spec", "profile", "facts", "rules", "cover", "claims")
GZIP_HEAD = b"\x1f\x8b\x08\x10\0\0\0\0\x02\xff"  # deflate, with a comment, no time
MOST_BYTES = 1 << 28  # of a certificate that is unpacked
ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Refused(Exception):
    """The certificate is wrong: the message names the place."""


def demand(holds: object, place: str, what: str) -> None:
    """Refuse the certificate unless something holds."""
    if not holds:
        raise Refused(f"{place}: {what}")


def whole(value: Any, place: str) -> int:
    """Return a whole number; true and 1.0 are none."""
    demand(type(value) is int, place, f"{value!r} is no whole number")
    return int(value)


def wholes(values: Any, count: int, place: str) -> list[int]:
    """Return a list of so many whole numbers."""
    demand(type(values) is list and len(values) == count, place, f"not {count} numbers")
    return [whole(value, place) for value in values]


def keyed(found: Any, keys: Sequence[str], place: str, further: str = "") -> Any:
    """Return a mapping that has all of some keys and no others but further ones."""
    demand(type(found) is dict, place, "a mapping was expected")
    odd = {*keys} ^ {*found} - {*further.split()}
    demand(not odd, place, f"{min(odd, default='')} is missing, or is too much")
    return found


def shown(text: str) -> str:
    """Return text of a file, which a terminal may not obey."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def canonical(value: Any) -> bytes:
    """Return JSON in the one form that is hashed: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def read(data: bytes) -> dict[str, Any]:
    """Return the parts of a certificate, whose hashes are all as stated."""
    demand(data.startswith(GZIP_HEAD), "file", "it has another gzip head")
    stated, _, body = data[len(GZIP_HEAD) :].partition(b"\0")
    is_whole = stated == f"sha256:{sha256(body).hexdigest()}".encode()
    unpacker = zlib.decompressobj(31)
    try:
        text = unpacker.decompress(data, MOST_BYTES)
        found = json.loads(text)
    except (ValueError, RecursionError, zlib.error) as error:
        raise Refused(f"file: its bytes were changed: {error}") from None
    keyed(found, ("format", "version", "seal", *PARTS), "file")
    demand(found["format"] == FORMAT, "format", f"expected {FORMAT}")
    seal = keyed(found["seal"], (*PARTS, "whole"), "seal")
    for part in PARTS:
        digest = sha256(canonical(found[part])).hexdigest()
        demand(digest == seal[part], part, "was changed: its sha256 is not in the seal")
    named = [found["format"], found["version"], *(seal[part] for part in PARTS)]
    digest = sha256(canonical(named)).hexdigest()
    demand(digest == seal["whole"], "seal", "was changed: `whole` is not of all parts")
    demand(text == canonical(found) + b"\n", "file", "it is not written canonically")
    is_whole &= unpacker.eof and not unpacker.unused_data
    demand(is_whole, "file", "its bytes were changed")
    return dict(found)


# ----------------------------------------------------------- 2. the decisions
DECISIONS = (
    *("tp", "pp", "cp", "dp_shard", "dp_replicate"),
    *("micro_batch", "zero", "sequence_parallel", "ep", "schedule", "vpp"),
    *("precision", "offload", "recompute"),
)
PLACE = {name: place for place, name in enumerate(DECISIONS)}
DEGREES = 5  # so many decisions come first, whose product is the number of GPUs
WAY = {"recompute": 0, "recompute_modules": 1, "recompute_segment": 2}
CODES = {"ONE_F_ONE_B": 0, "ZERO_BUBBLE": 2, "KEEPS_ALL": 0, "PARAMETERS": 3}
CODES |= {"NONE": 0, "SELECTIVE": 1, "FULL": 2}  # of recomputation
NUMBERS = ("gpus", "leading", "node_gpus", "capacity_kib", "schedules", "percent")
MOST = {"layers": 1_000, "schedules": 3}  # of what is counted up to
MOST_OF_ANY = 10**10  # whose divisors are found at once
MOST_STEPS = 10**7  # of the search of the splits of a leaf


@cache
def divisors(n: int) -> list[int]:
    """Return the divisors of a number, least first."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


class Domain:
    """The values that each decision may have, given those before it."""

    def __init__(self, facts: Any, spec: Any) -> None:
        """Hold the facts against the spec."""
        self.facts, self.spec, self.words = facts, spec, facts["words"]
        odd = {*facts} & {*DECISIONS, *WAY, "dp", "microbatches"}
        demand(not odd, "facts", f"{odd} are no facts but decided")
        model, training = spec["model"], spec["training"]
        experts = model["moe"] or {"n_experts": 1, "shared_d_ff": 0}
        said = {"layers": model["n_layers"], "heads": model["n_heads"]}
        said |= {"d_ff": model["d_ff"], "experts": experts["n_experts"]}
        said |= {"batch": training["global_batch"], "seq_len": training["seq_len"]}
        said |= {"shared_d_ff": experts["shared_d_ff"]}
        for name in (*NUMBERS, *said):
            place, number = f"facts.{name}", whole(facts[name], f"facts.{name}")
            most = MOST.get(name, MOST_OF_ANY)
            demand(0 <= number <= most, place, f"{number} is not from 0 to {most}")
            right = said.get(name, number)
            demand(number == right, place, f"the spec says {right}")
        words = map(self.words["precision"].index, training["precision"])
        demand(facts["precisions"] == [*words], "facts.precisions", "not of the spec")
        self.ways = [wholes(way, 3, "facts.ways") for way in facts["ways"]]

    def values(self, level: int, path: Path) -> Sequence[int]:
        """Return the values of a decision; `path` holds those that come before it."""
        facts = self.facts
        if level < DEGREES:
            left = facts["gpus"] // prod(path[:level])
            return [left] if level == DEGREES - 1 else divisors(left)
        (tp, pp, cp, shard, replicate), name = path[:DEGREES], DECISIONS[level]
        if name == "micro_batch":
            return divisors(max(facts["batch"] // (shard * replicate), 1))
        if name == "zero":
            return [1, 2, 3] if shard > 1 else [0, 1, 2, 3] if replicate == 1 else [0]
        if name == "sequence_parallel":
            return [0, 1] if tp > 1 else [0]
        if name == "ep":
            data = shard if shard > 1 or replicate == 1 else replicate
            return divisors(gcd(facts["experts"], tp * cp * data))
        if name == "schedule":
            return range(facts["schedules"] if pp > 1 else 1)
        if name == "vpp":
            layers, schedule = facts["layers"], path[PLACE["schedule"]]
            is_even = layers % pp == 0 or facts["has_uneven_chunks"]
            may = pp > 1 and schedule == CODES["ONE_F_ONE_B"] and is_even
            return divisors(-(-layers // pp)) if may else [1]
        known = {"precision": facts["precisions"], "offload": facts["offloads"]}
        return known.get(name) or range(len(self.ways))

    def value(self, name: str, path: Path) -> int:
        """Return a code, a fact, or what a path decides; IndexError if it does not."""
        if name in CODES or name in self.facts:
            return CODES[name] if name in CODES else int(self.facts[name])
        if name == "dp":
            return self.value("dp_shard", path) * self.value("dp_replicate", path)
        if name == "microbatches":
            per_rank = max(self.facts["batch"] // self.value("dp", path), 1)
            return int(per_rank // self.value("micro_batch", path))
        value = path[PLACE["recompute" if name in WAY else name]]
        return self.ways[value][WAY[name]] if name in WAY else value

    def told(self, path: Path) -> str:
        """Return a path in words."""
        pairs = ((name, self.value(name, path)) for name in DECISIONS[: len(path)])
        words = (f"{n} {self.words[n][v] if n in self.words else v}" for n, v in pairs)
        return ", ".join(words) or "the root"


# --------------------------------------------------------------- 3. the rules
RULES = {  # that every plan keeps, as Python of facts, decisions and codes
    "heads_divisible": "heads % tp == 0",
    "mlp_divisible": "d_ff % tp == 0",
    "shared_experts_divisible": "shared_d_ff % tp == 0",
    "batch_divisible": "batch % dp == 0",
    "layers_cover_stages": "pp - 1 + max(leading, 1) <= layers",
    "context_divisible": "cp == 1 or (seq_len % cp == 0 and not stores_scores)",
    "sequence_divisible": "not sequence_parallel or seq_len % (tp * cp) == 0",
    "zero_bubble_recompute": "schedule != ZERO_BUBBLE or recompute == NONE",
    "recompute_modules": "recompute == SELECTIVE or recompute_modules == 0",
    "recompute_segment": "recompute_segment == 1 or (recompute == FULL and "
    "pp * vpp * recompute_segment <= layers)",
    "recompute_segment_weights": "recompute_segment == 1 or (zero < 3 and "
    "offload != PARAMETERS)",
    "layers_cover_chunks": "vpp == 1 or layers // (pp * vpp) >= max(leading, 1)",
}


class Rules:
    """The rules of a certificate, as tests of paths."""

    def __init__(self, said: Any, domain: Domain) -> None:
        """Read every rule, in the order in which leaves number them."""
        self.domain, self.trusted = domain, list[str]()
        self.names, self.tests = list[str](), list[Callable[[Path], bool]]()
        for index, rule in enumerate(said):
            keys, place = ("name", "sentence", "source"), f"rules[{index}]"
            keyed(rule, keys, place, "looks_at table")
            self.names.append(rule["name"])
            self.tests.append(self.test(rule, place))

    def test(self, rule: Any, place: str) -> Callable[[Path], bool]:
        """Return whether a rule refuses a path, as a function of the path."""
        name, value = rule["name"], self.domain.value
        if name.startswith("pin "):
            return self.pin(name.removeprefix("pin "), place)
        if name in RULES:
            demand("table" not in rule, place, f"{name} is arithmetic: it has no table")
            code = compile(RULES[name], name, "eval")
            names = [n for n in code.co_names if n != "max"]
            return lambda path: not eval(code, {n: value(n, path) for n in names})
        looks_at = rule["looks_at"]
        known = {*DECISIONS, *WAY, "dp", "microbatches"}
        demand(looks_at and known >= {*looks_at}, place, "looks at what is no decision")
        table = {tuple(wholes(row, len(looks_at), place)) for row in rule["table"]}
        self.trusted.append(f"{name}: {rule['sentence']} ({rule['source']})")
        return lambda path: tuple(value(n, path) for n in looks_at) in table

    def pin(self, field: str, place: str) -> Callable[[Path], bool]:
        """Return whether the pin of the spec on a field refuses a path."""
        pin, value = self.domain.spec["pins"][field], self.domain.value
        demand(pin is not None, place, f"the spec does not pin {field}")
        if type(pin) is bool:
            return lambda path: bool(value(field, path)) != pin
        if type(pin) is list:
            codes = [*map(self.domain.words[field].index, pin)]
            return lambda path: value(field, path) not in codes
        within, some = range(pin["min"], pin["max"] + 1), pin["values"]
        accepted = within if some is None else [n for n in some if n in within]
        return lambda path: value(field, path) not in accepted

    def refuse_all(self, index: int, path: Path) -> bool:
        """Return whether a rule refuses every skeleton below a path."""
        try:
            return self.tests[index](path)
        except IndexError:
            values = self.domain.values(len(path), path)
            return all(self.refuse_all(index, (*path, value)) for value in values)


# --------------------------------------------------------------- 4. the terms
TICKS = (
    *("layer", "recompute", "first", "last", "send"),
    *("pace_layer", "pace_recompute", "pace_first", "pace_last", "pace_send"),
    *("sync_layer", "sync_first", "sync_last"),
)  # nanoseconds
STAGE = 6  # stages alike, fixed, per_layer, freed (KiB), fewest and most layers
ONE_NUMBER = 1  # scope: all chunks recompute their first k layers, k the same for all
ALL_LAYERS = 2  # scope: all layers are recomputed, which is part of their terms
Options = list[list[tuple[int, int, int, int]]]  # of stages: layers, again, pace, end


class Terms:
    """What a skeleton takes and holds: a step is sum of fill + longest pace + end.

    On a stage with n layers of which r are recomputed, fill = n layer + r recompute.
    """

    def __init__(self, said: Any, domain: Domain, place: str) -> None:
        """Read the terms; each number is refused that cannot be."""
        keyed(said, ("at", "ticks", "scope", "recomputes"), place, "stages")
        self.place, self.layers = place, int(domain.facts["layers"])
        self.at = tuple(wholes(said["at"], len(DECISIONS), place))
        for level, value in enumerate(self.at):
            what = f"{DECISIONS[level]} {value} is outside of the domain"
            demand(value in domain.values(level, self.at), place, what)
        ticks_ = wholes(said["ticks"], len(TICKS), place)
        self.ticks = dict(zip(TICKS, ticks_, strict=True))
        for name, ticks in self.ticks.items():
            is_end = name.endswith(("first", "last"))
            demand(ticks >= 0 or is_end, place, f"{name} is below 0")
        self.pp, self.vpp = self.at[PLACE["pp"]], self.at[PLACE["vpp"]]
        self.scope, self.must = whole(said["scope"], place), said["recomputes"]
        demand(self.scope in (0, 1, 2), place, "scope is unknown")
        self.repeats = domain.value("recompute", self.at) != CODES["NONE"]
        is_some = self.repeats and self.ticks["recompute"] > 0
        demand(self.must == int(is_some), place, "recomputes contradicts the mode")
        self.stages, self.steps = list[list[int]](), 0
        for run in said.get("stages", ()):
            count, fixed, *rest = wholes(run, STAGE, place)
            is_right = 0 < count <= self.pp <= self.layers and rest[0] >= rest[1] >= 0
            is_right &= 0 <= rest[2] <= self.layers >= rest[3]
            demand(is_right, place, f"stages {run} are not counted or free too much")
            self.stages += [[domain.facts["capacity_kib"] - fixed, *rest]] * count
        demand(len(self.stages) in (0, self.pp), place, f"not {self.pp} stages")

    @property
    def base(self) -> int:
        """Return the fill of all stages without recomputation, whatever the split."""
        t, sends = self.ticks, 2 * (self.pp * self.vpp - 1)
        return self.layers * t["layer"] + t["first"] + t["last"] + sends * t["send"]

    @cached_property
    def besides(self) -> list[list[int]]:
        """Return the ticks of every stage beside its layers, of pace and of end."""
        send = self.ticks["pace_send"]
        found = [[2 * self.vpp * send, 0] for _ in range(self.pp)]
        for stage, name in (0, "first"), (-1, "last"):
            found[stage][0] += self.ticks[f"pace_{name}"] - send
            found[stage][1] += self.ticks[f"sync_{name}"]
        return found

    def pace(self, stage: int, n: int, r: int) -> int:
        """Return the ticks of all further micro-batches, if this stage is slowest."""
        layers = n * self.ticks["pace_layer"] + r * self.ticks["pace_recompute"]
        return max(layers + self.besides[stage][0], 0)

    def end(self, stage: int, n: int) -> int:
        """Return the ticks after the last backward, if this stage ends last."""
        return max(n * self.ticks["sync_layer"] + self.besides[stage][1], 0)

    def least_in_time(self) -> int:
        """Return ticks that no split goes below, memory left aside.

        The slowest stage is no faster than the mean of all, and the largest one has
        layers / pp of them, rounded up.
        """
        t, pp, largest = self.ticks, self.pp, -(-self.layers // self.pp)
        paces = self.layers * t["pace_layer"] + t["pace_first"] + t["pace_last"]
        paces += 2 * (pp * self.vpp - 1) * t["pace_send"]
        pace = largest * t["pace_layer"] + min(t["pace_first"], 0)
        end = largest * t["sync_layer"] + min(t["sync_first"], 0)
        last = max(t["sync_first"], t["sync_last"]) + t["sync_layer"]
        if pp == 1:
            last = t["sync_first"] + t["sync_last"] + self.layers * t["sync_layer"]
        return self.base + max(-(-paces // pp), pace) + max(end, last)

    def ranges(self, k: int | None) -> tuple[int, list[tuple[int, int]] | None]:
        """Return how many layers fit, and the fewest and the most on each stage.

        Chunks recompute their first k layers, or all where k is None. A stage holds at
        least what all others together cannot. None where no split fits.
        """
        bounds, is_open = list[tuple[int, int]](), True
        for room, per_layer, freed, fewest, cap in self.stages:
            kept = per_layer - freed
            held = min(cap, room // kept if kept else cap) if room >= 0 else 0
            if k is not None and held >= k * self.vpp and per_layer:
                held = min(cap, (room + k * self.vpp * freed) // per_layer)
            is_open &= held >= fewest
            bounds.append((fewest, held))
        total = sum(most for _, most in bounds) if is_open else 0
        over, under = total - self.layers, self.layers - sum(few for few, _ in bounds)
        if over < 0 or under < 0:
            return total, None
        return total, [(max(f, m - over), min(m, f + under)) for f, m in bounds]

    def may_take_less(self, limit: int, equal: int = 0, whole_: int = 0) -> bool:
        """Return whether a split, equal or all recomputed if asked, takes less."""
        demand(self.stages, self.place, "its stages are missing")
        numbers: Sequence[int | None] = [None]
        if self.scope == ONE_NUMBER:
            most = max(cap if freed else 0 for _, _, freed, _, cap in self.stages)
            most = -(-most // self.vpp)
            numbers = range((most if whole_ else 1) if self.must else 0, most + 1)
        for k in numbers:
            ranges = self.ranges(k)[1] or []
            options = [self.options(*s, k, equal, whole_) for s in enumerate(ranges)]
            if options and all(options) and self.finds_less(options, limit - self.base):
                return True
        return False

    def options(
        self, stage: int, held: tuple[int, int], k: int | None, equal: int, whole_: int
    ) -> list[tuple[int, int, int, int]]:
        """Return the layers and recomputed layers of a stage that fit, with times."""
        room, per_layer, freed, _, _ = self.stages[stage]
        found = set()
        for n in range(held[0], held[1] + 1):
            forced = -(-max(n * per_layer - room, 0) // max(freed, 1))
            again = {forced, max(forced, self.must)}
            if k is not None:
                again = {min(k * self.vpp, n)}
            elif self.must and whole_:
                again = {n}
            for r in again if n * self.pp == self.layers or not equal else ():
                if n * per_layer - r * freed <= room and r <= (n if freed else 0):
                    found.add((n, r, self.pace(stage, n, r), self.end(stage, n)))
        return sorted(found)

    def finds_less(self, options: Options, limit: int) -> bool:
        """Return whether splits of some options take less than a limit over `base`.

        For every pace and every end that may be the longest, the fewest recomputed
        layers are added.
        """
        for pace, of_pace in tried(options, 2, self.layers):
            self.count_steps(options, 1)
            least_end = min(option[3] for own in of_pace for option in own)
            if pace + least_end >= limit:
                return False
            for end, left in tried(of_pace, 3, self.layers):
                if pace + end >= limit:
                    break
                self.count_steps(left, self.layers)
                again = fewest_recomputed(left, self.layers, self.must)
                more = (again or 0) * self.ticks["recompute"]
                if again is not None and pace + end + more < limit:
                    return True
                if again is not None and again <= self.must:
                    break
        return False

    def count_steps(self, options: Options, times: int) -> None:
        """Refuse a leaf whose splits nobody can search: no true one is such."""
        self.steps += times * sum(map(len, options))
        demand(self.steps <= MOST_STEPS, self.place, "its splits take too long")

    def split_ticks(self, split: list[list[int]], place: str) -> int:
        """Return the ticks of a split, which is refused unless it fits in memory."""
        demand(len(split) == len(self.stages) == self.pp, place, "not pp stages")
        demand(sum(n for n, _ in split) == self.layers, place, "layers are lost")
        for stage, ((n, r), limits) in enumerate(zip(split, self.stages, strict=True)):
            room, per_layer, freed, fewest, cap = limits
            where, need = f"{place}, stage {stage}", n * per_layer - r * freed
            demand(fewest <= n <= cap, where, f"{n} layers, not {fewest} to {cap}")
            demand(0 <= r <= n, where, f"{r} of {n} layers are recomputed")
            demand(need <= room, where, f"layers need {need} KiB, it has {room}")
        again = sum(r for _, r in split)
        demand((again > 0) == self.must, place, "recomputation contradicts the mode")
        pace = max(self.pace(stage, n, r) for stage, (n, r) in enumerate(split))
        end = max(self.end(stage, n) for stage, (n, _) in enumerate(split))
        return self.base + again * self.ticks["recompute"] + pace + end


def tried(options: Options, column: int, layers: int) -> Iterator[tuple[int, Options]]:
    """Yield the paces or ends that leave room for all layers, and what is within."""
    times = sorted({option[column] for own in options for option in own})

    def within(time: int) -> Options:
        return [[option for option in own if option[column] <= time] for own in options]

    def has_room(time: int) -> bool:
        left = within(time)
        return all(left) and sum(max(own)[0] for own in left) >= layers

    for time in times[bisect_left(times, True, key=has_room) :]:
        yield time, within(time)


def fewest_recomputed(options: Options, layers: int, must: int) -> int | None:
    """Return the fewest recomputed layers of splits of some options, None if none is.

    `must` says that some layer is. States are layers so far, and whether one was.
    """
    states = {(0, 0): 0}
    for own in options:
        longer: dict[tuple[int, int], int] = {}
        for (held, some), again in states.items():
            for n, r, _, _ in own:
                key = held + n, some or int(r > 0)
                longer[key] = min(longer.get(key, again + r), again + r)
        states = longer
    ends = [(layers, some) for some in range(must, 2) if (layers, some) in states]
    return min((states[end] for end in ends), default=None)


# --------------------------------------------------------------- 5. the cover
LONG, FEW_TOKENS, LONG_CONTEXT = 16_384, 4_096, 32_768  # tokens
LEVELS = ("tp", "pp", "vpp", "cp", "cp_tokens", "ep", "zero", "offload", "schedule")
SWITCHES = {"vpp", "cp_tokens", "zero", "offload", "schedule"}
KINDS = ("of", "rule", "memory", "slower")


def level(degree: int, *bounds: int) -> int:
    """Return 0 for a degree of 1, and one more above each bound."""
    return sum(bound < degree for bound in (1, *bounds))


def kind_of(node: Any, place: str) -> str:
    """Return whether a node is a branch, or which kind of leaf."""
    kinds = [kind for kind in KINDS if kind in node]
    demand(len(kinds) == 1, place, "a node is a branch or one kind of leaf")
    return kinds[0]


class Cover:
    """The tree of decisions, walked once."""

    def __init__(self, domain: Domain, rules: Rules, claims: Claims) -> None:
        """Take what leaves are held against."""
        self.domain, self.rules, self.claims = domain, rules, claims
        self.counts = dict.fromkeys(KINDS[1:], 0)
        runs, self.common = (domain.facts[n] for n in ("runs", "common_runs"))
        self.runs = [wholes(run, len(LEVELS), "facts.runs") for run in runs]

    def walk(self, node: Any, path: Path = ()) -> None:
        """Check a node: a branch has every value once, and leaves hold."""
        place, level = f"cover at {self.domain.told(path)}", len(path)
        keyed(node, ("by", "of"), place)
        is_next = level < len(DECISIONS) and node["by"] == DECISIONS[level]
        demand(is_next, place, f"branches by {node['by']}")
        left = {*self.domain.values(level, path)}
        for values, child in node["of"]:
            demand(values, place, "a branch has no value")
            for value in values:
                is_new = type(value) is int and value in left
                demand(is_new, place, f"{value} stands twice, or is outside")
                left.remove(value)
            if kind_of(child, place) == "of":
                for value in values:
                    self.walk(child, (*path, value))
            else:
                self.leaf(child, path, values, place)
        demand(not left, place, f"{node['by']} {left} is not covered")

    def leaf(self, leaf: Any, path: Path, values: list[int], place: str) -> None:
        """Check a leaf: all skeletons below some values of a path are refused."""
        paths, kind = [(*path, value) for value in values], kind_of(leaf, place)
        place += f", {DECISIONS[len(path)]} {', '.join(map(str, values))}"
        self.counts[kind] += 1
        number = whole(leaf[kind], place)
        if kind == "rule":
            keyed(leaf, ("rule",), place)
            demand(0 <= number < len(self.rules.names), place, "there is no such rule")
            name, is_all = self.rules.names[number], self.rules.refuse_all
            is_refused = all(is_all(number, each) for each in paths)
            demand(is_refused, place, f"{name} does not refuse all of it")
            return
        keyed(leaf, (kind, "terms"), place, "demands")
        terms = Terms(leaf["terms"], self.domain, place)
        is_below = any(terms.at[: len(each)] == each for each in paths)
        demand(is_below, place, "its terms are of a skeleton elsewhere")
        if kind == "memory":
            held, ranges = terms.ranges(None)
            is_over = terms.stages and held == number and ranges is None
            demand(is_over, place, f"the stages hold {held} layers, not {number}")
            return
        is_sure = terms.least_in_time() >= number or not terms.may_take_less(number)
        demand(is_sure, place, f"some split may take less than {number} ns")
        self.claims.check_leaf(self, leaf, path, values, place)

    def box(self, path: Path, values: list[int]) -> dict[str, Sequence[int]]:
        """Return the values of decisions that doubts depend on, below a path."""
        known = [*([value] for value in path), values]
        found: dict[str, Sequence[int]] = {"vpp": [1, 2]}
        for name in PLACE.keys() & {*LEVELS}:
            if PLACE[name] < len(known):
                found[name] = known[PLACE[name]]
            elif name != "vpp":
                degrees = tuple(own[0] for own in known[:DEGREES])
                found[name] = self.domain.values(PLACE[name], degrees)
        return found

    def levels(self, box: dict[str, Sequence[int]]) -> list[set[int]]:
        """Return the levels of every decision in `LEVELS` that skeletons may have."""
        node, seq_len = (self.domain.facts[name] for name in ("node_gpus", "seq_len"))
        alone = 3 * bool(self.domain.spec["model"]["moe"])
        pairs = product(box["ep"], box["tp"])
        known = {
            "tp": {level(tp, node) for tp in box["tp"]},
            "pp": {level(pp, 8, 16) for pp in box["pp"]},
            "vpp": {int(vpp > 1) for vpp in box["vpp"]},
            "cp": {level(n, 2) + (n > 2 and seq_len < LONG) for n in box["cp"]},
            "cp_tokens": {int(n > 1 and seq_len < FEW_TOKENS * n) for n in box["cp"]},
            "ep": {1 + (e * t > node) if e > 1 else alone for e, t in pairs},
            "zero": {max(zero - 1, 0) for zero in box["zero"]},
            "offload": {int(code != CODES["KEEPS_ALL"]) for code in box["offload"]},
            "schedule": {int(code != CODES["ONE_F_ONE_B"]) for code in box["schedule"]},
        }
        return [known[name] for name in LEVELS]

    def distance(self, box: dict[str, Sequence[int]]) -> int:
        """Return in how many decisions skeletons are beyond what was run, at least."""

        def beyond(run: list[int]) -> int:
            known = zip(LEVELS, ours, run, strict=True)
            return sum(min(o) > n if k in SWITCHES else n not in o for k, o, n in known)

        ours = self.levels(box)
        return min(map(beyond, self.runs), default=0)

    def unit(self, path: Path, values: list[int]) -> int:
        """Return the least price of a tick below values: hundredths, if any doubts."""
        percent = int(self.domain.facts["percent"])
        return 100 + percent * self.distance(self.box(path, values)) if percent else 1

    def criteria(self, names: list[str], path: Path, *of_split: object) -> list[int]:
        """Return how far from simple: `of_split` is uneven stages, some recompute."""
        at = {name: self.domain.value(name, path) for name in PLACE}
        facts, n, box = self.domain.facts, at["micro_batch"], self.box(path, [])
        published, techniques = (facts[n].items() for n in ("published", "techniques"))
        known = {
            "beyond_runs": self.distance(box),
            "unlike_published": any(at[n] != c for n, c in published),
            "rarely_run": bool(self.common)
            and [*map(min, self.levels(box))] not in self.common,
            "techniques": sum(at[n] not in p for n, p in techniques),
            "offload": at["offload"] != CODES["KEEPS_ALL"],
            "short_context_parallel": at["cp"] > 1 and facts["seq_len"] < LONG_CONTEXT,
            "zero3_in_pipeline": at["zero"] == 3 and at["pp"] > 1,
            "odd_micro_batch": n & (n - 1) != 0,
            "uneven_stages": bool(of_split[0]),
            "partial_recompute": bool(of_split[1]),
        }
        return [int(known[name]) for name in names]


# -------------------------------------------------------------- 6. the claims
class Plan:
    """A plan that is claimed: its terms add up to the ticks that it states."""

    def __init__(self, said: Any, domain: Domain, place: str) -> None:
        """Add up its terms."""
        keyed(said, ("split", "ticks", "step_s", "terms"), place)
        terms = Terms(said["terms"], domain, place)
        split = [wholes(pair, 2, place) for pair in said["split"]]
        self.at, self.ticks = terms.at, terms.split_ticks(split, place)
        is_right = whole(said["ticks"], place) == self.ticks
        demand(is_right, place, f"its terms add up to {self.ticks} ns")
        rounding = 1.5e-9 * (2 * terms.layers + 2 + 2 * terms.pp * terms.vpp)
        off = abs(said["step_s"] - self.ticks * 1e-9)
        demand(off <= rounding, place, f"step_s is {off} s off")
        is_all = terms.scope == ALL_LAYERS or all(r == n for n, r in split)
        self.of_split = len({n for n, _ in split}) > 1, terms.repeats and not is_all


class Claims:
    """What the certificate says of plans, held against every leaf."""

    def __init__(self, said: Any, domain: Domain) -> None:
        """Read the claims, and add up the plans."""
        keys = ("fastest", "cheapest", "recommended", "near")
        keyed(said, ("status", *keys), "claims")
        self.fits = said["status"] == "optimal"
        demand(self.fits or said["status"] == "infeasible", "claims", "status unknown")
        names = [key for key in keys[:2] if said[key] is not None]
        self.plans = {key: Plan(said[key], domain, f"claims.{key}") for key in names}
        self.most_near, self.near = -1, dict[Path, Plan]()
        if said["near"] is not None:
            near = keyed(said["near"], ("within", "plans"), "claims.near")
            demand(0 < near["within"] < 1, "claims.near", "within is no share")
            self.most_near = int(self.plans["fastest"].ticks * (1 + near["within"]))
            for index, one in enumerate(near["plans"]):
                plan = Plan(one, domain, f"claims.near.plans[{index}]")
                is_new = plan.at not in self.near and plan.ticks <= self.most_near
                demand(is_new, "claims.near", f"plan {index} is there, or not within")
                self.near[plan.at] = plan
        if said["recommended"] is not None:
            place = "claims.recommended"
            told = keyed(said["recommended"], ("within", "criteria", "plan"), place)
            self.plans["recommended"] = Plan(told["plan"], domain, place)
            self.within, self.criteria = told["within"], told["criteria"]
            demand(0 < self.within < 1, place, "within is no share")
            known = [level["criteria"] for level in domain.spec["objective"]["levels"]]
            demand(self.criteria in known, place, "the criteria are not of the spec")
        is_told = bool(self.plans) == self.fits == ("fastest" in self.plans)
        demand(is_told, "claims", "a plan is named though none fits, or none is")

    def price(self, cover: Cover) -> None:
        """Compute the prices that leaves are compared with."""
        self.least = self.most = -1
        if "recommended" not in self.plans:
            return
        best, cheapest = self.plans["recommended"], self.plans["cheapest"]
        self.least = cheapest.ticks * cover.unit(cheapest.at, [])
        self.most = int(self.least * (1 + self.within))
        is_within = best.ticks * cover.unit(best.at, []) <= self.most
        demand(is_within, "claims.recommended", "it is not within the tolerance")
        self.simplicity = cover.criteria(self.criteria, best.at, *best.of_split)

    def check_leaf(
        self, cover: Cover, leaf: Any, path: Path, values: list[int], place: str
    ) -> None:
        """Refuse a leaf of slower skeletons that may hold a better plan."""
        demand(self.fits, place, "it is refused by time, though no plan is said to fit")
        ticks, fastest = leaf["slower"], self.plans["fastest"].ticks
        demand(ticks >= fastest, place, f"{ticks} ns are below the fastest, {fastest}")
        at = (*path, values[0])
        is_one = len(at) == len(DECISIONS) and len(values) == 1
        is_told = ticks > self.most_near or (is_one and at in self.near)
        demand(is_told, place, "it may be near the fastest plan, and is not told")
        if ticks * (100 if cover.domain.facts["percent"] else 1) > self.most:
            return
        demand(len(path) >= DEGREES - 1, place, "a group may be within the tolerance")
        price = ticks * cover.unit(path, values)
        demand(price >= self.least, place, "it may be cheaper than the cheapest")
        if price <= self.most:
            demand(is_one, place, "a group may be within the tolerance")
            self.check_simplicity(cover, leaf, at, place)

    def check_simplicity(self, cover: Cover, leaf: Any, at: Path, place: str) -> None:
        """Refuse a skeleton that may be simpler, by the bounds on simpler splits."""
        known = {(0, 0): leaf["slower"]}
        for said in leaf.get("demands", ()):
            keyed(said, ("equal", "whole", "ticks", "terms"), place)
            key = whole(said["equal"], place), whole(said["whole"], place)
            demand({*key} <= {0, 1}, place, "equal and whole are 0 or 1")
            known[key] = ticks = whole(said["ticks"], place)
            terms = Terms(said["terms"], cover.domain, place)
            demand(terms.at == at, place, "its demands are of another skeleton")
            is_sure = not terms.may_take_less(ticks, *key)
            demand(is_sure, place, f"a split of demand {key} may take less")
        for equal, whole_ in product((0, 1), repeat=2):
            criteria = cover.criteria(self.criteria, at, not equal, not whole_)
            bounds = (t for (e, w), t in known.items() if e <= equal and w <= whole_)
            is_out = max(bounds) * cover.unit(at, []) > self.most
            is_out |= criteria >= self.simplicity
            demand(is_out, place, "it may be simpler than the recommended plan")

    def check_plans(self, tree: Any, domain: Domain) -> None:
        """Refuse claimed plans that the tree refuses."""
        near = {f"near: {domain.told(at)}": plan for at, plan in self.near.items()}
        for name, plan in {**self.plans, **near}.items():
            node = tree
            for value in plan.at:
                if "of" in node:
                    node = next(child for own, child in node["of"] if value in own)
            is_left = "slower" in node and node["slower"] <= plan.ticks
            demand(is_left, f"claims.{name}", "the plan is in a group that is refused")


def verify(data: bytes) -> list[str]:
    """Return what the bytes of a certificate show, as lines; Refused if it is wrong."""
    found = read(data)
    try:
        domain = Domain(found["facts"], found["spec"])
        rules, claims = Rules(found["rules"], domain), Claims(found["claims"], domain)
        cover = Cover(domain, rules, claims)
        claims.price(cover)
        cover.walk(found["cover"])
        claims.check_plans(found["cover"], domain)
        return [*map(shown, told(found, claims, cover, rules))]
    except (*ODD, RuntimeError) as error:
        raise Refused(f"a part has another form: {error!r}") from error


def told(found: Any, claims: Claims, cover: Cover, rules: Rules) -> Iterator[str]:
    """Yield what holds, and what was taken on trust."""
    domain, facts = cover.domain, found["facts"]
    yield f"verified: the certificate, written by Meshwright {found['version']}"
    yield f"spec sha256 {found['seal']['spec']}"
    yield f"profile sha256 {found['profile']['sha256']}"
    groups = (f"{count:,} by {kind}" for kind, count in cover.counts.items())
    yield f"groups that leave no plan out: {', '.join(groups)}"
    yield from () if claims.fits else ("no plan fits",)
    for name, plan in claims.plans.items():
        yield f"{name}: {domain.told(plan.at)}: {plan.ticks * 1e-9:.9f} s"
    if "recommended" in claims.plans:
        yield f"no plan within {claims.within:.1%} of the cheapest is simpler"
    if claims.near:
        yield f"plans within {claims.most_near} ns: {len(claims.near):,}, and no others"
    yield "on trust: terms of time and memory, as the cost model gives them"
    yield "on trust: that the terms of a group are those of its best skeleton and mesh"
    yield f"on trust: {', '.join(f'{name} {facts[name]:,}' for name in NUMBERS)}"
    yield "on trust: which schedules, recomputation and offload are launched"
    yield from (f"on trust, as a table: {rule}" for rule in rules.trusted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the certificates that are named; 0 if all hold, 1 if one does not."""
    names = sys.argv[1:] if arguments is None else arguments
    if not names or names[0].startswith("-"):
        print("usage: meshwright_verify.py CERTIFICATE...", file=sys.stderr)
        return 2
    codes = [0]
    for name in names:
        try:
            with open(name, "rb") as file:
                print("\n".join(verify(file.read())))
        except (OSError, Refused) as error:
            print(shown(f"{name}: refused: {error}"), file=sys.stderr)
            codes.append(1 if isinstance(error, Refused) else 2)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
