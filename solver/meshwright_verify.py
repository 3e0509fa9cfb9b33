"""Checks a certificate of Meshwright: `python meshwright_verify.py cert.json.gz`.

A certificate says that no plan is better than the one it names, or that none fits. This
file needs the standard library alone and shares no code with Meshwright, whose
`docs/certificates.md` describes the format. A *skeleton* has a value for each decision,
a *split* the layers that each stage has and recomputes. A leaf of the tree refuses all
skeletons below it: by a rule, by memory, or as slower. `told` says what is on trust.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from itertools import product
from math import gcd, isqrt, prod
from typing import Any

# ---------------------------------------------------------------- 1. the file
Path = tuple[int, ...]  # values of the first decisions
FORMAT = "meshwright-certificate-4"
PARTS = ("spec", "profile", "facts", "rules", "cover", "claims", "others")
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
    demand(data.startswith(GZIP_HEAD), "file", "no certificate, or its head changed")
    stated, _, body = data[len(GZIP_HEAD) :].partition(b"\0")
    unpacker = zlib.decompressobj(31)
    try:
        text = unpacker.decompress(data, MOST_BYTES)
        found = json.loads(text)
    except (ValueError, RecursionError, zlib.error) as error:
        raise Refused(f"file: its bytes were changed: {error}") from None
    keyed(found, ("format", "version", "seal", *PARTS), "file")
    demand(found["format"] == FORMAT, "format", f"expected {FORMAT}")
    for part, digest in keyed(found["seal"], PARTS, "seal").items():
        is_sealed = sha256(canonical(found[part])).hexdigest() == digest
        demand(is_sealed, part, "was changed: its sha256 is not in the seal")
    demand(text == canonical(found) + b"\n", "file", "it is not written canonically")
    is_whole = stated == f"sha256:{sha256(body).hexdigest()}".encode()
    is_whole &= unpacker.eof and not unpacker.unused_data
    demand(is_whole, "file", "its bytes were changed")
    return dict(found)


# ----------------------------------------------------------- 2. the decisions
DECISIONS = (  # of training
    *("tp", "pp", "cp", "dp_shard", "dp_replicate"),
    *("micro_batch", "zero", "sequence_parallel", "ep", "etp", "schedule", "vpp"),
    *("precision", "offload", "recompute"),
)
SERVING = ("tp", "pp", "dp_replicate", "microbatches", "attention_dp")
PLACE = {name: place for place, name in enumerate(DECISIONS)}
DEGREES = DECISIONS[:5]  # they come first; their product is the number of GPUs
PLAIN = {"vpp": 1, "recompute": 0, "attention_dp": 1, "dp_shard": 1}  # if undecided
WAY = {"recompute": 0, "recompute_modules": 1, "recompute_segment": 2}
CODES = {"ONE_F_ONE_B": 0, "ZERO_BUBBLE": 2, "V": 3, "KEEPS_ALL": 0, "PARAMETERS": 3}
CODES |= {"NONE": 0, "SELECTIVE": 1, "FULL": 2}  # of recomputation
NUMBERS = ("gpus", "leading", "node_gpus", "schedules", "percent")
FACTS = (  # taken on trust
    *(*NUMBERS, "capacity_kib", "offloads", "ways", "words", "techniques", "published"),
    *("runs", "common_runs", "stores_scores", "has_uneven_chunks", "rates", "makers"),
)
COUNTED, MOST = ("layers", "schedules"), (10**10, 1_000)  # of others, and of these
MOST_STEPS, HORIZON = 10**7, 2**48  # of a leaf's splits; nanoseconds no step takes


@cache
def divisors(n: int) -> list[int]:
    """Return the divisors of a number, least first."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def group_counts(requests: int) -> list[int]:
    """Return for each size of groups of requests the fewest groups, least first."""
    root = isqrt(requests)  # up to which every number is the fewest of some size
    large = (-(-requests // size) for size in range(1, root + 2))
    return sorted({*range(1, root + 1), *large})


class Domain:
    """The values that each decision may have, given those before it."""

    def __init__(self, trusted: Any, spec: Any) -> None:
        """Join the facts that are taken on trust and those that the spec states."""
        keyed(trusted, FACTS, "facts")
        self.spec, self.words = spec, trusted["words"]
        served, model = spec.get("inference"), spec["model"]
        self.decisions = SERVING if served else DECISIONS
        self.degrees = sum(name in DEGREES for name in self.decisions)
        asked = served or spec["training"]
        experts = model["moe"] or {"n_experts": 1, "shared_d_ff": 0, "d_ff": 0}
        said = {"layers": model["n_layers"], "heads": model["n_heads"]}
        said |= {"d_ff": model["d_ff"], "adapters": int(bool(asked.get("lora")))}
        said |= {"experts": experts["n_experts"], "shared_d_ff": experts["shared_d_ff"]}
        said |= {"expert_d_ff": experts["d_ff"] if served else 0}
        said |= {"batch": asked["batch" if served else "global_batch"]}
        said |= {"seq_len": asked["prompt_len" if served else "seq_len"]}
        plain = {n: code for n, code in PLAIN.items() if n not in self.decisions}
        self.facts: dict[str, Any] = CODES | plain | trusted | said
        for name in (*NUMBERS, *said):
            number, most = whole(self.facts[name], name), MOST[name in COUNTED]
            demand(0 <= number <= most, name, f"{number} is not from 0 to {most}")
        room = trusted["capacity_kib"]
        self.room = wholes(room, len(room), "facts.capacity_kib")
        chosen = [] if served else asked["precision"]
        self.precisions = [self.words["precision"].index(word) for word in chosen]
        self.ways = [wholes(way, 3, "facts.ways") for way in trusted["ways"]]

    def values(self, level: int, path: Path) -> Sequence[int]:
        """Return the values of a decision; `path` holds those that come before it."""
        facts, name = self.facts, self.decisions[level]
        if level < self.degrees:
            left = facts["gpus"] // prod(path[:level])
            return [left] if level == self.degrees - 1 else divisors(left)
        if name == "microbatches":
            return group_counts(-(-facts["batch"] // path[2]))
        if name == "attention_dp":
            return divisors(path[0]) if self.spec["model"]["moe"] else [1]
        tp, pp, cp, shard, replicate = path[: self.degrees]
        if name == "micro_batch":
            return divisors(max(facts["batch"] // (shard * replicate), 1))
        if name == "zero":
            return [1, 2, 3] if shard > 1 else [0, 1, 2, 3] if replicate == 1 else [0]
        data = shard if shard > 1 or replicate == 1 else replicate
        if name == "ep":
            return divisors(gcd(facts["experts"], tp * cp * data))
        if name == "etp":
            moe = self.spec["pins"]["etp"] is not None and self.spec["model"]["moe"]
            may = moe and moe["d_ff"] % tp == 0 and cp * data % path[PLACE["ep"]] == 0
            return [1, tp] if tp > 1 and may else [1]
        is_even = facts["layers"] % pp == 0 or facts["has_uneven_chunks"]
        chunks = divisors(-(-facts["layers"] // pp)) if pp > 1 and is_even else [1]
        if name == "schedule":
            codes = range(facts["schedules"] if pp > 1 else 1)
            return [code for code in codes if code < CODES["V"] or 2 in chunks]
        if name == "vpp":
            by = path[PLACE["schedule"]]
            return chunks if by == CODES["ONE_F_ONE_B"] else [1 + (by >= CODES["V"])]
        of = {"precision": self.precisions, "sequence_parallel": [0, 1][:tp]}
        return {**of, "offload": facts["offloads"]}.get(name) or range(len(self.ways))

    def value(self, name: str, path: Path) -> int:
        """Return a code, a fact, or what a path decides; IndexError if it does not."""
        if name in self.facts:
            return int(self.facts[name])
        if name == "dp":
            return self.value("dp_shard", path) * self.value("dp_replicate", path)
        if name == "microbatches" and name not in self.decisions:
            per_rank = max(self.facts["batch"] // self.value("dp", path), 1)
            return int(per_rank // self.value("micro_batch", path))
        value = path[self.decisions.index("recompute" if name in WAY else name)]
        return self.ways[value][WAY[name]] if name in WAY else value

    def told(self, path: Path) -> str:
        """Return a path in words."""
        pairs = ((n, self.value(n, path)) for n in self.decisions[: len(path)])
        words = (f"{n} {self.words[n][v] if n in self.words else v}" for n, v in pairs)
        return ", ".join(words) or "the root"


# --------------------------------------------------------------- 3. the rules
RULES = {  # that every plan keeps, as Python of facts, decisions and codes
    "heads_divisible": "heads % (tp // attention_dp) == 0",
    "mlp_divisible": "d_ff % (tp // attention_dp) == 0 and expert_d_ff % tp == 0",
    "attention_groups": "attention_dp <= -(-batch // dp // microbatches)",
    "shared_experts_divisible": "shared_d_ff % tp == 0",
    "batch_divisible": "batch % dp == 0",
    "layers_cover_stages": "pp - 1 + max(leading, 1) <= layers",
    "context_divisible": "cp == 1 or (seq_len % cp == 0 and not stores_scores)",
    "sequence_divisible": "not sequence_parallel or seq_len % (tp * cp) == 0",
    "zero_bubble_recompute": "schedule < ZERO_BUBBLE or recompute == NONE",
    "recompute_modules": "recompute == SELECTIVE or recompute_modules == 0",
    "recompute_segment": "recompute_segment == 1 or (recompute == FULL and "
    "pp * vpp * recompute_segment <= layers)",
    "recompute_segment_weights": "recompute_segment == 1 or (zero < 3 and "
    "offload != PARAMETERS)",
    "layers_cover_chunks": "vpp<2 or pp*vpp<=layers and -layers//pp//vpp*pp<=-leading",
}


class Rules:
    """The rules of a certificate, as tests of paths."""

    def __init__(self, said: Any, domain: Domain) -> None:
        """Read every rule, in the order in which leaves number them."""
        self.domain, self.trusted = domain, list[str]()
        self.tests = list[Callable[[Path], bool]]()
        for rule in said:
            place = f"rules[{len(self.tests)}]"
            keyed(rule, ("name", "sentence", "source"), place, "looks_at table")
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
        known = {*DECISIONS, *SERVING, *WAY, "dp"}
        demand(looks_at and known >= {*looks_at}, place, "looks at what is no decision")
        table = {tuple(wholes(row, len(looks_at), place)) for row in rule["table"]}
        self.trusted.append(f"{name}: {rule['sentence']} ({rule['source']})")
        return lambda path: tuple(value(n, path) for n in looks_at) in table

    def pin(self, field: str, place: str) -> Callable[[Path], bool]:
        """Return whether the pin of the spec on a field refuses a path."""
        pin, value = self.domain.spec["pins"][field], self.domain.value
        demand(pin is not None, place, f"the spec does not pin {field}")
        if field in ("recompute_layers", "layers"):  # a number for every stage
            return lambda path: (
                sum(max(n, 1) for n in pin) > self.domain.facts["layers"]
                or value("pp", path) != len(pin)
                or (field != "layers" and any(pin) == (value("recompute", path) == 0))
            )
        accepted: Any = [pin]
        if type(pin) is list:
            accepted = [*map(self.domain.words[field].index, pin)]
        elif type(pin) is dict:
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
TIMES = 9  # stages alike; ticks of fill and pace: beside, layer, again; end, layer
HELD = 7  # stages alike, kind of GPU, fixed, per_layer, freed (KiB), fewest and most
ONE_NUMBER, ALL_LAYERS = 1, 2  # scope: chunks recompute their first k layers, or all
Options = list[list[Path]]  # of stages: layers, again, and ticks of fill, pace, end


class Terms:
    """The time and memory of a skeleton: a step is sum of fill + longest pace + end."""

    def __init__(self, said: Any, domain: Domain, place: str) -> None:
        """Read the terms; each number is refused that cannot be."""
        keyed(said, ("at", "scope"), place, "times stages")
        self.place, self.layers = place, int(domain.facts["layers"])
        self.at = tuple(wholes(said["at"], len(domain.decisions), place))
        for level, value in enumerate(self.at):
            demand(value in domain.values(level, self.at), place, f"{value} is outside")
        self.pp, self.vpp = domain.value("pp", self.at), domain.value("vpp", self.at)
        self.scope = whole(said["scope"], place)
        demand(self.pp <= self.layers and 0 <= self.scope <= 2, place, "no such scope")
        self.repeats = domain.value("recompute", self.at) != CODES["NONE"]
        self.steps, self.times = 0, self.runs(said.get("times", []), TIMES)
        self.stages = self.runs(said.get("stages", []), HELD)
        for stage in self.stages:
            kind, fixed, per_layer, freed, few, most = stage
            is_right = 0 <= kind < len(domain.room) and per_layer >= freed >= 0
            is_right &= 0 <= few <= self.layers >= most
            demand(is_right, place, f"stages {stage} are not of the GPUs, or free much")
            stage[:2] = [domain.room[kind] - fixed]
        layers, again = map(domain.spec["pins"].get, ("layers", "recompute_layers"))
        again = again if type(again) is list else []
        # Where all layers are recomputed, pinned numbers are those of the layers.
        self.pinned, held = ([], again) if self.scope == ALL_LAYERS else (again, [])
        for pins in held, layers or []:
            for stage, n in zip(self.stages, pins, strict=False):
                stage[3:] = max(stage[3], n), min(stage[4], n)
        if self.times:
            least = [min(column) for column in zip(*self.times, strict=True)]
            demand(min(*least[1:3], *least[4:6], least[7]) >= 0, place, "ticks below 0")
            self.layer, self.must = least[1], int(self.repeats and least[2] > 0)
            # The fill of all layers on the fastest stages, without recomputation.
            self.base = sum(run[0] for run in self.times) + self.layers * self.layer

    def runs(self, said: Any, count: int) -> list[list[int]]:
        """Return the numbers of every stage, of which those alike are told once."""
        stages = list[list[int]]()
        for run in said:
            alike, *numbers = wholes(run, count, self.place)
            demand(0 < alike <= self.pp, self.place, f"{alike} stages are alike")
            stages += [[*numbers] for _ in range(alike)]
        demand(len(stages) in (0, self.pp), self.place, f"not {self.pp} stages")
        return stages

    def ticks(self, stage: int, n: int, r: int) -> tuple[int, int, int]:
        """Return the ticks of a stage: of fill beside the base, of pace, and of end."""
        _, layer, again, pace, per_layer, per_again, end, sync = self.times[stage]
        fill, pace = n * (layer - self.layer) + r * again, pace + n * per_layer
        return fill, max(pace + r * per_again, 0), max(end + n * sync, 0)

    def least_in_time(self) -> int:
        """Return ticks that no split goes below, memory left aside."""
        # The mean stage, and an even share of the layers: every stage has a layer.
        demand(self.times, self.place, "its times are missing")
        _, _, _, paces, per_layer, _, ends, sync = zip(*self.times, strict=True)
        largest, least = -(-self.layers // self.pp), min(per_layer)
        mean = -(-(self.layers * least + sum(paces)) // self.pp)
        pace = max(mean, largest * least + min(paces), 0)
        one = self.layers if self.pp == 1 else 1
        end = max(end + one * per for end, per in zip(ends, sync, strict=True))
        return int(self.base + pace + max(end, largest * min(sync) + min(ends), 0))

    def ranges(self, k: int | None) -> tuple[int, list[tuple[int, int]] | None]:
        """Return how many layers fit, and the range of each stage if all do."""
        bounds, fixed = list[tuple[int, int]](), self.pinned or [0] * self.pp
        for stage, pin in zip(self.stages, fixed, strict=True):
            room, per_layer, freed, few, cap = stage
            kept, again = per_layer - freed, pin if k is None else k * self.vpp
            held = min(cap, room // kept if kept else cap) if room >= 0 else 0
            if (self.pinned or k is not None) and held >= again and per_layer:
                held = min(cap, (room + again * freed) // per_layer)
            bounds.append((max(few, pin), held))
        total = sum(most for _, most in bounds) * all(a <= b for a, b in bounds)
        over, under = total - self.layers, self.layers - sum(few for few, _ in bounds)
        if over < 0 or under < 0:
            return total, None
        # A stage holds at least what all others together cannot.
        return total, [(max(f, m - over), min(m, f + under)) for f, m in bounds]

    def may_take_less(self, limit: int, equal: int = 0, whole_: int = 0) -> bool:
        """Return whether a split, equal or all recomputed if asked, takes less."""
        demand(self.stages and self.times, self.place, "its stages are missing")
        self.equal, self.whole = equal, self.must and whole_
        # Chunks recompute their first k layers, or all where k is None.
        numbers: Sequence[int | None] = [None]
        if self.scope == ONE_NUMBER:
            most = max(cap if freed else 0 for _, _, freed, _, cap in self.stages)
            most = -(-most // self.vpp)
            numbers = range(most if self.whole else self.must, most + 1)
        for k in numbers:
            ranges = self.ranges(k)[1] or []
            options = [self.options(*stage, k) for stage in enumerate(ranges)]
            demand(self.steps <= MOST_STEPS, self.place, "its splits take too long")
            if options and all(options) and self.finds_less(options, limit - self.base):
                return True
        return False

    def options(self, stage: int, held: Path, k: int | None) -> list[Path]:
        """Return the layers and recomputed layers of a stage that fit, with ticks."""
        room, per_layer, freed, _, _ = self.stages[stage]
        found, self.steps = set(), self.steps + held[1] - held[0] + 1
        for n in range(held[0], held[1] + 1):
            forced = -(-max(n * per_layer - room, 0) // max(freed, 1))
            is_free = k is None and not self.whole
            again = {n if k is None else min(k * self.vpp, n)}
            if self.pinned:
                again = {self.pinned[stage]} & ({*range(n + 1)} if is_free else again)
            elif is_free:
                again = {forced, max(forced, self.must)}
            for r in again if n * self.pp == self.layers or not self.equal else ():
                if n * per_layer - r * freed <= room and r <= (n if freed else 0):
                    found.add((n, r, *self.ticks(stage, n, r)))
        return sorted(found)

    def finds_less(self, options: Options, limit: int) -> bool:
        """Return whether splits of some options take less than a limit over `base`."""
        # What stages take so far, by their layers and whether one was recomputed: sum
        # of fill, longest pace, last end. The last two are known to be some at least.
        start: Path = 0, *(least_with_room(options, i, self.layers) for i in (3, 4))
        states = {(0, 0): [start]} if sum(start) < limit else {}
        for ways in options:
            longer: dict[tuple[int, int], set[Path]] = {}
            for ((held, some), known), (n, r, *more) in product(states.items(), ways):
                self.steps += len(known)
                demand(self.steps <= MOST_STEPS, self.place, "its splits take too long")
                found = longer.setdefault((held + n, some or int(r > 0)), set())
                for fill, pace, end in known:
                    ticks = fill + more[0], max(pace, more[1]), max(end, more[2])
                    if sum(ticks) < limit:
                        found.add(ticks)
            states = {key: undominated(found) for key, found in longer.items() if found}
        return any((self.layers, some) in states for some in range(self.must, 2))


def least_with_room(options: Options, column: int, layers: int) -> int:
    """Return the least pace, or end, within which the stages run all layers."""
    most = [-layers * len(options)] * len(options)
    pairs = ((option, stage) for stage, ways in enumerate(options) for option in ways)
    for time, n, stage in sorted((one[column], one[0], stage) for one, stage in pairs):
        most[stage] = max(most[stage], n)
        if sum(most) >= layers:
            return time
    return 0


def undominated(found: set[Path]) -> list[Path]:
    """Return the ticks than which no others are less, or equal, in all three."""
    left = list[Path]()
    for one in sorted(found):
        if not any(other[1] <= one[1] and other[2] <= one[2] for other in left):
            left.append(one)
    return left


# ---------------------------------------------------------------- 5. the doubts
FEW_TOKENS, SHORT, LONG, LONG_CONTEXT, WIDE_EP = 4_096, 8_192, 16_384, 32_768, 64
SAME = {"tp", "pp", "cp", "ep"}  # levels of a run; of the other nine, it has as much


class Doubts:
    """How far skeletons are from what was run, and from simple."""

    def __init__(self, domain: Domain) -> None:
        """Read the combinations of decisions that were run."""
        self.domain, self.facts = domain, domain.facts
        runs, self.common = self.facts["runs"], self.facts["common_runs"]
        self.runs = [wholes(run, 9 + len(SAME), "facts.runs") for run in runs]

    def box(self, path: Path, values: list[int]) -> dict[str, Sequence[int]]:
        """Return the values of decisions that doubts depend on, below a path."""
        demand(len(path) >= self.domain.degrees - 1, "doubts", "a group spans degrees")
        known, degrees = [*([v] for v in path), values], (*path, *values)[:5]
        found: dict[str, Sequence[int]] = dict(zip(DECISIONS, known, strict=False))
        for name in {"pp", "ep", "zero", "offload", "recompute", "schedule"} - {*found}:
            found[name] = self.domain.values(PLACE[name], degrees)
        return {"vpp": [2] if min(found["schedule"]) >= CODES["V"] else [1, 2], **found}

    def levels(self, box: dict[str, Sequence[int]]) -> dict[str, set[int]]:
        """Return the levels of every decision that skeletons may have."""
        node, seq_len, ways = (self.facts[n] for n in ("node_gpus", "seq_len", "ways"))
        tp, _, cp, shard, replicas = (min(box[name]) for name in DEGREES)
        ep = [(n > 1) * max(1 + (n * tp > node), 3 * (n > WIDE_EP)) for n in box["ep"]]
        return {
            "tp": {(tp > 1) + (node % tp > 0)},
            "pp": {(pp > 1) + (pp > 8) + (pp > 16) for pp in box["pp"]},
            "adapters": {(tp * pp > 1) * self.facts["adapters"] for pp in box["pp"]},
            "vpp": {int(vpp > 1) for vpp in box["vpp"]},
            "cp": {(cp > 1) + (cp > 2) * (1 + (seq_len < LONG))},
            "few": {int(cp > 1 and seq_len < FEW_TOKENS * cp)},  # tokens a GPU
            "short": {int(cp > 1 and seq_len < SHORT)},  # sequence, beside them
            "ep": {n or 4 * bool(self.domain.spec["model"]["moe"]) for n in ep},
            "zero": {max(zero - 1, 0) for zero in box["zero"]},
            "hsdp": {int(shard > 1 < replicas and tp * cp * shard < node)},
            "offload": {int(code != CODES["KEEPS_ALL"]) for code in box["offload"]},
            "inputs": {int(ways[w][0] > CODES["FULL"]) for w in box["recompute"]},
            "schedule": {int(code != CODES["ONE_F_ONE_B"]) for code in box["schedule"]},
        }

    def distance(self, box: dict[str, Sequence[int]]) -> int:
        """Return in how many decisions skeletons are beyond what was run, at least."""
        found, makers = list[int](), self.facts["makers"].items()  # for the very job
        for zero, ep in product(box["zero"], box["ep"]):
            ours = self.levels(one := {**box, "zero": [zero], "ep": [ep]})
            unlike = any({*one[n]}.isdisjoint(c) for n, c in makers)
            for run in self.runs or [[*map(min, ours.values())]]:
                of = ((*item, n) for item, n in zip(ours.items(), run, strict=True))
                far = (n not in o if k in SAME else min(o) > n for k, o, n in of)
                found.append(unlike + sum(far))
        return min(found)

    def unit(self, path: Path, values: list[int]) -> int:
        """Return the least price of a tick below values: hundredths, if any doubts."""
        percent = int(self.facts["percent"])
        return 100 + percent * self.distance(self.box(path, values)) if percent else 1

    def criteria(self, names: list[str], path: Path, *of_split: object) -> list[int]:
        """Return how far from simple: `of_split` is uneven stages, some recompute."""
        at = {name: self.domain.value(name, path) for name in PLACE}
        box, n = self.box(path, []), at["micro_batch"]
        facts, ours = self.facts, [*map(min, self.levels(box).values())]
        known = {
            "beyond_runs": self.distance(box),
            "unlike_published": any(at[n] != c for n, c in facts["published"].items()),
            "rarely_run": ours not in self.common and bool(self.common),
            "deep_pipeline": at["pp"] > 16,
            "techniques": sum(at[n] not in p for n, p in facts["techniques"].items()),
            "replicated_shards": at["dp_shard"] > 1 < at["dp_replicate"],
            "offload": at["offload"] > 0 or at["recompute"] > CODES["FULL"],
            "short_context_parallel": at["cp"] > 1 and facts["seq_len"] < LONG_CONTEXT,
            "zero3_in_pipeline": at["zero"] == 3 and at["pp"] > 1,
            "odd_micro_batch": n & (n - 1) != 0,
            "uneven_stages": bool(of_split[0]),
            "partial_recompute": bool(of_split[1]),
        }
        return [int(known[name]) for name in names]


# -------------------------------------------------------------- 6. the claims
class Plan:
    """A plan that is claimed: its split fits, and its terms add up to its ticks."""

    def __init__(self, said: Any, domain: Domain, place: str) -> None:
        """Add up its terms."""
        keyed(said, ("split", "ticks", "terms"), place)
        terms = Terms(said["terms"], domain, place)
        split = [wholes(pair, 2, place) for pair in said["split"]]
        demand(len(split) == len(terms.stages) == len(terms.times), place, "no stages")
        demand(sum(n for n, _ in split) == terms.layers, place, "layers are lost")
        for stage, ((n, r), limits) in enumerate(zip(split, terms.stages, strict=True)):
            room, per_layer, freed, fewest, cap = limits
            is_held = fewest <= n <= cap and n * per_layer - r * freed <= room
            is_held &= 0 <= r <= n and (not terms.pinned or terms.pinned[stage] == r)
            what = f"it does not hold {n} layers, {r} of them recomputed"
            demand(is_held, f"{place}, stage {stage}", what)
        demand(any(r for _, r in split) == terms.must, place, "recomputes off its mode")
        times = (terms.ticks(stage, *pair) for stage, pair in enumerate(split))
        fill, pace, end = zip(*times, strict=True)
        ticks = terms.base + sum(fill) + max(pace) + max(end)
        demand(whole(said["ticks"], place) == ticks, place, f"they add up to {ticks}")
        is_all = terms.scope == ALL_LAYERS or all(r == n for n, r in split)
        self.at, self.ticks = terms.at, ticks
        self.of_split = len({n for n, _ in split}) > 1, terms.repeats and not is_all


class Claims:
    """The claims of the certificate about plans, held against every leaf."""

    def __init__(self, said: Any, domain: Domain) -> None:
        """Read the claims, add up the plans, and price what leaves are held against."""
        keys = ("fastest", "cheapest", "recommended", "near")
        keyed(said, ("status", *keys), "claims")
        self.domain, self.doubts = domain, Doubts(domain)
        self.fits = said["status"] == "optimal"
        demand(self.fits or said["status"] == "infeasible", "claims", "status unknown")
        named = [key for key in keys[:2] if said[key] is not None]
        self.plans = {key: Plan(said[key], domain, f"claims.{key}") for key in named}
        self.fastest = self.plans["fastest"].ticks if self.fits else HORIZON
        self.most_near, self.near = -1, dict[Path, Plan]()
        if said["near"] is not None:
            near = keyed(said["near"], ("within", "plans"), "claims.near")
            self.most_near = int(self.fastest * (1 + near["within"]))
            for index, one in enumerate(near["plans"]):
                plan = Plan(one, domain, f"claims.near.plans[{index}]")
                is_new = plan.at not in self.near and plan.ticks <= self.most_near
                demand(is_new, "claims.near", f"plan {index} is there, or not within")
                self.near[plan.at] = plan
        self.least = self.most = -1
        if said["recommended"] is not None:
            self.recommend(said["recommended"], "claims.recommended")
        demand(bool(self.plans) == self.fits, "claims", "a plan is named, or none fits")

    def recommend(self, said: Any, place: str) -> None:
        """Price the recommended plan, which is within the tolerance of the cheapest."""
        keyed(said, ("within", "criteria", "plan"), place)
        best = self.plans["recommended"] = Plan(said["plan"], self.domain, place)
        self.within, self.criteria = said["within"], said["criteria"]
        demand(0 < self.within < 1, place, "within is no share")
        known = [one["criteria"] for one in self.domain.spec["objective"]["levels"]]
        demand(self.criteria in known, place, "the criteria are not of the spec")
        unit, cheapest = self.doubts.unit, self.plans["cheapest"]
        self.least = cheapest.ticks * unit(cheapest.at, [])
        self.most = int(self.least * (1 + self.within))
        demand(best.ticks * unit(best.at, []) <= self.most, place, "it is not within")
        self.simplicity = self.doubts.criteria(self.criteria, best.at, *best.of_split)

    def check_leaf(self, bounds: Any, path: Path, values: Any, place: str) -> None:
        """Refuse a leaf that may hold a better plan; bounds are by (equal, whole)."""
        ticks, best = bounds[0, 0], self.fastest
        demand(ticks >= best, place, f"{ticks} ns are below {best}, the least claimed")
        at = (*path, values[0])
        is_one = len(at) == len(self.domain.decisions) and len(values) == 1
        is_told = ticks > self.most_near or (is_one and at in self.near)
        demand(is_told, place, "it may be near the fastest plan, and is not told")
        if ticks * (100 if self.domain.facts["percent"] else 1) > self.most:
            return
        unit = self.doubts.unit(path, values)
        demand(ticks * unit >= self.least, place, "it may be cheaper than the cheapest")
        if ticks * unit > self.most:
            return
        demand(is_one, place, "a group may be within the tolerance")
        for equal, whole_ in product((0, 1), repeat=2):
            of_split = self.doubts.criteria(self.criteria, at, not equal, not whole_)
            known = (t for (e, w), t in bounds.items() if e <= equal and w <= whole_)
            is_out = max(known) * unit > self.most or of_split >= self.simplicity
            demand(is_out, place, "it may be simpler than the recommended plan")

    def check_plans(self, tree: Any) -> None:
        """Refuse claimed plans that the tree refuses."""
        for plan in (*self.plans.values(), *self.near.values()):
            node = tree
            for value in plan.at:
                if "of" in node:
                    node = next(child for alike, child in node["of"] if value in alike)
            is_left = "slower" in node and node["slower"] <= plan.ticks
            place = f"claims: {self.domain.told(plan.at)}"
            demand(is_left, place, "the plan is in a group that is refused")


# --------------------------------------------------------------- 7. the cover
KINDS = ("of", "rule", "memory", "slower")


class Cover:
    """The tree of decisions, walked once."""

    def __init__(self, rules: Rules, check_leaf: Callable[..., None]) -> None:
        """Take what leaves are held against."""
        self.domain, self.rules, self.check_leaf = rules.domain, rules, check_leaf
        self.counts = dict.fromkeys(KINDS[1:], 0)

    def walk(self, node: Any, path: Path = (), tree: str = "cover") -> None:
        """Check a node: a branch has every value once, and leaves hold."""
        place, level = f"{tree} at {self.domain.told(path)}", len(path)
        keyed(node, ("by", "of"), place)
        names = self.domain.decisions[level : level + 1]
        demand(node["by"] in names, place, f"branches by {node['by']}")
        left = {*self.domain.values(level, path)}
        for values, child in node["of"]:
            for value in values:
                is_new = type(value) is int and value in left
                demand(is_new, place, f"{value} stands twice, or is outside")
                left.remove(value)
            kinds = [kind for kind in KINDS if kind in child]
            demand(len(kinds) == 1, place, "a node is a branch or one kind of leaf")
            for value in values if kinds == ["of"] else ():
                self.walk(child, (*path, value), tree)
            if kinds != ["of"]:
                self.leaf(child, path, values, place)
        demand(not left, place, f"{node['by']} {left} is not covered")

    def leaf(self, leaf: Any, path: Path, values: list[int], place: str) -> None:
        """Check a leaf: all skeletons below some values of a path are refused."""
        paths, kind = [(*path, v) for v in values], next(k for k in KINDS if k in leaf)
        place += f", {self.domain.decisions[len(path)]} {', '.join(map(str, values))}"
        self.counts[kind] += 1
        keyed(leaf, (kind,), place, "terms demands")
        number = whole(leaf[kind], place)
        if kind == "rule":
            demand(0 <= number < len(self.rules.tests), place, "there is no such rule")
            is_refused = all(self.rules.refuse_all(number, each) for each in paths)
            demand(is_refused, place, f"rule {number} does not refuse all of it")
            return
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
        bounds = {(0, 0): number}
        for said in leaf.get("demands", ()):
            keyed(said, ("equal", "whole", "ticks", "terms"), place)
            key = whole(said["equal"], place), whole(said["whole"], place)
            demand({*key} <= {0, 1}, place, "equal and whole are 0 or 1")
            other, ticks = Terms(said["terms"], self.domain, place), said["ticks"]
            demand(other.at == terms.at, place, "its demands are of another skeleton")
            may = other.may_take_less(whole(ticks, place), *key)
            demand(not may, place, f"a split of demand {key} may take less")
            bounds[key] = ticks
        self.check_leaf(bounds, path, values, place)


# -------------------------------------------------------------- 8. the choices
SHARED = ("model", "framework", "pins", "rules", "limits", "objective")


def check_choice(said: Any, claims: Claims, place: str) -> None:
    """Check that no plan of another choice is better: than the cheapest, by price."""
    keyed(said, ("spec", "facts", "least"), place, "kernels rules cover")
    ours, spec, facts, ticks = claims.domain, said["spec"], said["facts"], said["least"]
    least = HORIZON if ticks is None else whole(ticks, place)
    demand(all(ours.spec[p] == spec[p] for p in SHARED), place, "of another question")
    is_priced = claims.most >= 0 and ticks is not None

    def check_leaf(bounds: Any, path: Path, values: Any, where: str) -> None:
        unit = doubts.unit(path, values) if is_priced else 1
        demand(bounds[0, 0] * unit >= least, where, f"plans may take less than {least}")

    if "kernels" in said:
        tp, pp, cp, dp, size, layer, fill = wholes(said["kernels"], 7, place)
        keyed(facts, ("gpus", "rates"), place)
        is_real = min(tp, pp, cp, dp, size) > 0 and tp * pp * cp * dp == facts["gpus"]
        demand(is_real, place, "its kernels are of no degrees")
        layers = ours.facts["layers"] - ours.facts["leading"]
        largest, n = -(-layers // pp), spec["training"]["global_batch"] // dp // size
        most = n * largest * layer + (layers - largest) * fill  # of the other stages
        most *= 100 if is_priced and ours.facts["percent"] else 1
        demand(least * 1_000 <= most, place, f"its kernels take {most} picoseconds")
    else:
        domain = Domain(facts | {n: ours.facts[n] for n in ("percent", "runs")}, spec)
        doubts = Doubts(domain)
        Cover(Rules(said["rules"], domain), check_leaf).walk(said["cover"], (), place)
    for level in spec["objective"]["levels"] if ticks is not None else ():
        metric, best = level["metric"], claims.least if is_priced else claims.fastest
        values = list[float]()
        for s, f, t in (spec, facts, ticks), (ours.spec, ours.facts, best):
            rates = keyed(f["rates"], (), "rates", "usd_per_mtoken kwh_per_mtoken")
            of_time = t / s["training"]["global_batch"] * rates.get(metric, 1)
            values.append(f["gpus"] if metric == "gpus" else of_time)
        theirs, mine = values  # prices are no whole numbers: equal within rounding
        if abs(theirs - mine) > 1e-7 * mine and metric != "simplest":
            demand(theirs > mine, place, f"it may have less {metric}")
            break


def verify(data: bytes) -> list[str]:
    """Return what the bytes of a certificate show, as lines; Refused if it is wrong."""
    found = read(data)
    try:
        domain = Domain(found["facts"], found["spec"])
        rules, claims = Rules(found["rules"], domain), Claims(found["claims"], domain)
        cover = Cover(rules, claims.check_leaf)
        cover.walk(found["cover"])
        claims.check_plans(found["cover"])
        for index, other in enumerate(found["others"]):
            check_choice(other, claims, f"others[{index}]")
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
    if specs := [other["spec"] for other in found["others"]]:
        digest = sha256(canonical(specs)).hexdigest()
        yield f"none of {len(specs):,} other choices is better: specs sha256 {digest}"
    yield "on trust: terms of time and memory; those of a group are of its best plan"
    numbers = ", ".join(f"{name} {facts[name]:,}" for name in NUMBERS)
    numbers += f", KiB of every kind of GPU {domain.room}"
    yield f"on trust: what is launched, limits on times, splits and links, {numbers}"
    yield from (f"on trust, as a table: {rule}" for rule in rules.trusted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a certificate; 0 if it holds, 1 if it does not, 2 if it cannot be read."""
    names = sys.argv[1:] if arguments is None else arguments
    if len(names) != 1 or names[0].startswith("-"):
        print("usage: meshwright_verify.py CERTIFICATE", file=sys.stderr)
        return 2
    try:
        with open(names[0], "rb") as file:
            print("\n".join(verify(file.read())))
    except (OSError, Refused) as error:
        print(shown(f"{names[0]}: refused: {error}"), file=sys.stderr)
        return 1 if isinstance(error, Refused) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
