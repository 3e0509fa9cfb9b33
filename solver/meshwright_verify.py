"""Checks a certificate of Meshwright: `python meshwright_verify.py cert.json.gz`.

A certificate says that no plan is better than the one it names, or that none fits. This
file checks it with the standard library alone and shares no code with Meshwright, whose
`docs/certificates.md` describes the format.

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
from functools import cache
from hashlib import sha256
from itertools import product
from math import gcd, prod
from typing import Any

# ---------------------------------------------------------------- 1. the file
Path = tuple[int, ...]  # values of the first decisions
FORMAT = "meshwright-certificate-2"
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
    demand(data.startswith(GZIP_HEAD), "file", "it has another gzip head")
    stated, _, body = data[len(GZIP_HEAD) :].partition(b"\0")
    unpacker = zlib.decompressobj(31)
    try:
        text = unpacker.decompress(data, MOST_BYTES)
        found = json.loads(text)
    except (ValueError, RecursionError, zlib.error) as error:
        raise Refused(f"file: its bytes were changed: {error}") from None
    keyed(found, ("format", "version", "seal", *PARTS), "file")
    demand(found["format"] == FORMAT, "format", f"expected {FORMAT}")
    seal = keyed(found["seal"], PARTS, "seal")
    for part in PARTS:
        digest = sha256(canonical(found[part])).hexdigest()
        demand(digest == seal[part], part, "was changed: its sha256 is not in the seal")
    demand(text == canonical(found) + b"\n", "file", "it is not written canonically")
    is_whole = stated == f"sha256:{sha256(body).hexdigest()}".encode()
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
LISTS = ("offloads", "ways", "words", "techniques", "published", "runs", "common_runs")
FACTS = (*NUMBERS, *LISTS, "stores_scores", "has_uneven_chunks", "rates")  # on trust
COUNTED, MOST = ("layers", "schedules"), (10**10, 1_000)  # of others, and of these
MOST_STEPS = 10**7  # of the search of the splits of a leaf


@cache
def divisors(n: int) -> list[int]:
    """Return the divisors of a number, least first."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


class Domain:
    """The values that each decision may have, given those before it."""

    def __init__(self, trusted: Any, spec: Any) -> None:
        """Join the facts that are taken on trust and those that the spec states."""
        keyed(trusted, FACTS, "facts")
        self.spec, self.words = spec, trusted["words"]
        model, training = spec["model"], spec["training"]
        experts = model["moe"] or {"n_experts": 1, "shared_d_ff": 0}
        said = {"layers": model["n_layers"], "heads": model["n_heads"]}
        said |= {"d_ff": model["d_ff"], "experts": experts["n_experts"]}
        said |= {"batch": training["global_batch"], "seq_len": training["seq_len"]}
        said |= {"shared_d_ff": experts["shared_d_ff"]}
        self.facts: dict[str, Any] = CODES | trusted | said
        for name in (*NUMBERS, *said):
            number, most = whole(self.facts[name], name), MOST[name in COUNTED]
            demand(0 <= number <= most, name, f"{number} is not from 0 to {most}")
        self.precisions = [*map(self.words["precision"].index, training["precision"])]
        self.ways = [wholes(way, 3, "facts.ways") for way in trusted["ways"]]

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
        known = {"precision": self.precisions, "offload": facts["offloads"]}
        return known.get(name) or range(len(self.ways))

    def value(self, name: str, path: Path) -> int:
        """Return a code, a fact, or what a path decides; IndexError if it does not."""
        if name in self.facts:
            return int(self.facts[name])
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
TICKS = (
    *("layer", "recompute", "first", "last", "send"),
    *("pace_layer", "pace_recompute", "pace_first", "pace_last", "pace_send"),
    *("sync_layer", "sync_first", "sync_last"),
)  # nanoseconds
STAGE = 6  # stages alike, fixed, per_layer, freed (KiB), fewest and most layers
ONE_NUMBER, ALL_LAYERS = 1, 2  # scope: chunks recompute their first k layers, or all
Options = list[list[tuple[int, int, int, int]]]  # of stages: layers, again, pace, end


class Terms:
    """What a skeleton takes and holds: a step is sum of fill + longest pace + end.

    On a stage with n layers of which r are recomputed, fill = n layer + r recompute.
    """

    def __init__(self, said: Any, domain: Domain, place: str) -> None:
        """Read the terms; each number is refused that cannot be."""
        keyed(said, ("at", "ticks", "scope"), place, "stages")
        self.place, self.layers = place, int(domain.facts["layers"])
        self.at = tuple(wholes(said["at"], len(DECISIONS), place))
        for level, value in enumerate(self.at):
            what = f"{DECISIONS[level]} {value} is outside of the domain"
            demand(value in domain.values(level, self.at), place, what)
        ticks = wholes(said["ticks"], len(TICKS), place)
        t = self.ticks = dict(zip(TICKS, ticks, strict=True))
        odd = [n for n in TICKS if t[n] < 0 and not n.endswith(("first", "last"))]
        demand(not odd, place, f"{odd} are below 0")
        self.pp, self.vpp = self.at[PLACE["pp"]], self.at[PLACE["vpp"]]
        self.scope = whole(said["scope"], place)
        demand(self.scope in (0, 1, 2), place, "scope is unknown")
        self.repeats = domain.value("recompute", self.at) != CODES["NONE"]
        self.must = int(self.repeats and t["recompute"] > 0)
        self.stages, self.steps = list[list[int]](), 0
        for run in said.get("stages", ()):
            count, fixed, *rest = wholes(run, STAGE, place)
            is_right = 0 < count <= self.pp <= self.layers and rest[0] >= rest[1] >= 0
            is_right &= 0 <= rest[2] <= self.layers >= rest[3]
            demand(is_right, place, f"stages {run} are not counted or free too much")
            self.stages += [[domain.facts["capacity_kib"] - fixed, *rest]] * count
        demand(len(self.stages) in (0, self.pp), place, f"not {self.pp} stages")
        # The fill without recomputation, and what stages add to pace and end beside it.
        self.base = self.layers * t["layer"] + t["first"] + t["last"]
        self.base += 2 * (self.pp * self.vpp - 1) * t["send"]
        self.besides = [[2 * self.vpp * t["pace_send"], 0] for _ in range(self.pp)]
        for stage, name in (0, "first"), (-1, "last"):
            self.besides[stage][0] += t[f"pace_{name}"] - t["pace_send"]
            self.besides[stage][1] += t[f"sync_{name}"]

    def times(self, stage: int, n: int, r: int) -> tuple[int, int]:
        """Return the ticks of a stage if it is the slowest one, and if it ends last."""
        t, (pace, end) = self.ticks, self.besides[stage]
        pace += n * t["pace_layer"] + r * t["pace_recompute"]
        return max(pace, 0), max(end + n * t["sync_layer"], 0)

    def least_in_time(self) -> int:
        """Return ticks that no split goes below, memory left aside."""
        # The slowest stage is no faster than their mean, and some stage has an even
        # share of the layers, rounded up; each has a layer.
        paces, ends = zip(*self.besides, strict=True)
        per_layer, sync = self.ticks["pace_layer"], self.ticks["sync_layer"]
        largest = -(-self.layers // self.pp)
        mean = -(-(self.layers * per_layer + sum(paces)) // self.pp)
        end = max(ends) + sync * (largest if self.pp == 1 else 1)
        pace = max(mean, largest * per_layer + min(paces))
        return int(self.base + pace + max(end, largest * sync + min(ends)))

    def ranges(self, k: int | None) -> tuple[int, list[tuple[int, int]] | None]:
        """Return how many layers fit, and the range of each stage if all do."""
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
        # A stage holds at least what all others together cannot.
        return total, [(max(f, m - over), min(m, f + under)) for f, m in bounds]

    def may_take_less(self, limit: int, equal: int = 0, whole_: int = 0) -> bool:
        """Return whether a split, equal or all recomputed if asked, takes less."""
        demand(self.stages, self.place, "its stages are missing")
        # Chunks recompute their first k layers, or all where k is None.
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
                    found.add((n, r, *self.times(stage, n, r)))
        return sorted(found)

    def finds_less(self, options: Options, limit: int) -> bool:
        """Return whether splits of some options take less than a limit over `base`."""
        for pace, of_pace in tried(options, 2, self.layers):
            self.count_steps(options, 1)
            least_end = min(option[3] for part in of_pace for option in part)
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


def tried(options: Options, column: int, layers: int) -> Iterator[tuple[int, Options]]:
    """Yield the paces or ends that leave room for all layers, and what is within."""
    times = sorted({option[column] for one in options for option in one})

    def within(time: int) -> Options:
        return [[option for option in one if option[column] <= time] for one in options]

    def has_room(time: int) -> bool:
        left = within(time)
        return all(left) and sum(max(one)[0] for one in left) >= layers

    for time in times[bisect_left(times, True, key=has_room) :]:
        yield time, within(time)


def fewest_recomputed(options: Options, layers: int, must: int) -> int | None:
    """Return the fewest recomputed layers of splits, of which some are if they must."""
    states = {(0, 0): 0}  # by the layers so far, and whether one was recomputed
    for option in options:
        longer: dict[tuple[int, int], int] = {}
        for (held, some), again in states.items():
            for n, r, _, _ in option:
                key = held + n, some or int(r > 0)
                longer[key] = min(longer.get(key, again + r), again + r)
        states = longer
    ends = [(layers, some) for some in range(must, 2) if (layers, some) in states]
    return min((states[end] for end in ends), default=None)


# ---------------------------------------------------------------- 5. the doubts
LONG, FEW_TOKENS, LONG_CONTEXT = 16_384, 4_096, 32_768  # tokens
LEVELS = ("tp", "pp", "vpp", "cp", "cp_tokens", "ep", "zero", "offload", "schedule")
SWITCHES = {"vpp", "cp_tokens", "zero", "offload", "schedule"}


def level(degree: int, *bounds: int) -> int:
    """Return 0 for a degree of 1, and one more above each bound."""
    return sum(bound < degree for bound in (1, *bounds))


class Doubts:
    """How far skeletons are from what was run, and from simple."""

    def __init__(self, domain: Domain) -> None:
        """Read the combinations of decisions that were run."""
        self.domain, self.facts = domain, domain.facts
        runs, self.common = self.facts["runs"], self.facts["common_runs"]
        self.runs = [wholes(run, len(LEVELS), "facts.runs") for run in runs]

    def box(self, path: Path, values: list[int]) -> dict[str, Sequence[int]]:
        """Return the values of decisions that doubts depend on, below a path."""
        known, degrees = [*([v] for v in path), values], (*path, *values)[:DEGREES]
        found: dict[str, Sequence[int]] = {"vpp": [1, 2]}
        for name in PLACE.keys() & {*LEVELS}:
            if PLACE[name] < len(known):
                found[name] = known[PLACE[name]]
            elif name != "vpp":
                found[name] = self.domain.values(PLACE[name], degrees)
        return found

    def levels(self, box: dict[str, Sequence[int]]) -> list[set[int]]:
        """Return the levels of every decision in `LEVELS` that skeletons may have."""
        node, seq_len = self.facts["node_gpus"], self.facts["seq_len"]
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
        ours = self.levels(box)
        runs = (zip(LEVELS, ours, run, strict=True) for run in self.runs)
        counts = (
            sum(min(o) > n if k in SWITCHES else n not in o for k, o, n in run)
            for run in runs
        )
        return min(counts, default=0)

    def unit(self, path: Path, values: list[int]) -> int:
        """Return the least price of a tick below values: hundredths, if any doubts."""
        percent = int(self.facts["percent"])
        return 100 + percent * self.distance(self.box(path, values)) if percent else 1

    def criteria(self, names: list[str], path: Path, *of_split: object) -> list[int]:
        """Return how far from simple: `of_split` is uneven stages, some recompute."""
        at = {name: self.domain.value(name, path) for name in PLACE}
        facts, n, box = self.facts, at["micro_batch"], self.box(path, [])
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
    """A plan that is claimed: its split fits, and its terms add up to its ticks."""

    def __init__(self, said: Any, domain: Domain, place: str) -> None:
        """Add up its terms."""
        keyed(said, ("split", "ticks", "terms"), place)
        terms = Terms(said["terms"], domain, place)
        split = [wholes(pair, 2, place) for pair in said["split"]]
        demand(len(split) == len(terms.stages) == terms.pp, place, "not pp stages")
        demand(sum(n for n, _ in split) == terms.layers, place, "layers are lost")
        for stage, ((n, r), limits) in enumerate(zip(split, terms.stages, strict=True)):
            room, per_layer, freed, fewest, cap = limits
            is_held = fewest <= n <= cap and n * per_layer - r * freed <= room
            what = f"it does not hold {n} layers, {r} of them recomputed"
            demand(is_held and 0 <= r <= n, f"{place}, stage {stage}", what)
        again = sum(r for _, r in split)
        demand((again > 0) == terms.must, place, "recomputation contradicts the mode")
        times = (terms.times(stage, *pair) for stage, pair in enumerate(split))
        ticks = terms.base + again * terms.ticks["recompute"]
        ticks += sum(map(max, zip(*times, strict=True)))
        is_right = whole(said["ticks"], place) == ticks
        demand(is_right, place, f"its terms add up to {ticks} ns")
        is_all = terms.scope == ALL_LAYERS or all(r == n for n, r in split)
        self.at, self.ticks = terms.at, ticks
        self.of_split = len({n for n, _ in split}) > 1, terms.repeats and not is_all


class Claims:
    """What the certificate says of plans, held against every leaf."""

    def __init__(self, said: Any, domain: Domain) -> None:
        """Read the claims, add up the plans, and price what leaves are held against."""
        keys = ("fastest", "cheapest", "recommended", "near")
        keyed(said, ("status", *keys), "claims")
        self.domain, self.doubts = domain, Doubts(domain)
        self.fits = said["status"] == "optimal"
        demand(self.fits or said["status"] == "infeasible", "claims", "status unknown")
        names = [key for key in keys[:2] if said[key] is not None]
        self.plans = {key: Plan(said[key], domain, f"claims.{key}") for key in names}
        self.most_near, self.near = -1, dict[Path, Plan]()
        if said["near"] is not None:
            near = keyed(said["near"], ("within", "plans"), "claims.near")
            self.most_near = int(self.plans["fastest"].ticks * (1 + near["within"]))
            for index, one in enumerate(near["plans"]):
                plan = Plan(one, domain, f"claims.near.plans[{index}]")
                is_new = plan.at not in self.near and plan.ticks <= self.most_near
                demand(is_new, "claims.near", f"plan {index} is there, or not within")
                self.near[plan.at] = plan
        self.least = self.most = -1
        if said["recommended"] is not None:
            self.recommend(said["recommended"], "claims.recommended")
        is_told = bool(self.plans) == self.fits == ("fastest" in self.plans)
        demand(is_told, "claims", "a plan is named though none fits, or none is")

    def recommend(self, said: Any, place: str) -> None:
        """Price the recommended plan, which is within the tolerance of the cheapest."""
        keyed(said, ("within", "criteria", "plan"), place)
        best = self.plans["recommended"] = Plan(said["plan"], self.domain, place)
        self.within, self.criteria = said["within"], said["criteria"]
        demand(0 < self.within < 1, place, "within is no share")
        levels = self.domain.spec["objective"]["levels"]
        is_known = self.criteria in [level["criteria"] for level in levels]
        demand(is_known, place, "the criteria are not of the spec")
        unit, cheapest = self.doubts.unit, self.plans["cheapest"]
        self.least = cheapest.ticks * unit(cheapest.at, [])
        self.most = int(self.least * (1 + self.within))
        is_within = best.ticks * unit(best.at, []) <= self.most
        demand(is_within, place, "it is not within the tolerance")
        self.simplicity = self.doubts.criteria(self.criteria, best.at, *best.of_split)

    def check_leaf(
        self, bounds: dict[Path, int], path: Path, values: list[int], place: str
    ) -> None:
        """Refuse a leaf that may hold a better plan; bounds are by (equal, whole)."""
        demand(self.fits, place, "it is refused by time, though no plan is said to fit")
        ticks, fastest = bounds[0, 0], self.plans["fastest"].ticks
        demand(ticks >= fastest, place, f"{ticks} ns are below the fastest, {fastest}")
        at = (*path, values[0])
        is_one = len(at) == len(DECISIONS) and len(values) == 1
        is_told = ticks > self.most_near or (is_one and at in self.near)
        demand(is_told, place, "it may be near the fastest plan, and is not told")
        if ticks * (100 if self.domain.facts["percent"] else 1) > self.most:
            return
        demand(len(path) >= DEGREES - 1, place, "a group may be within the tolerance")
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
        near = {f"near: {self.domain.told(at)}": p for at, p in self.near.items()}
        for name, plan in {**self.plans, **near}.items():
            node = tree
            for value in plan.at:
                if "of" in node:
                    node = next(child for own, child in node["of"] if value in own)
            is_left = "slower" in node and node["slower"] <= plan.ticks
            demand(is_left, f"claims.{name}", "the plan is in a group that is refused")


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
        is_next = level < len(DECISIONS) and node["by"] == DECISIONS[level]
        demand(is_next, place, f"branches by {node['by']}")
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
        place += f", {DECISIONS[len(path)]} {', '.join(map(str, values))}"
        self.counts[kind] += 1
        keyed(leaf, (kind,), place, "terms demands")
        number = whole(leaf[kind], place)
        if kind == "rule":
            demand(0 <= number < len(self.rules.names), place, "there is no such rule")
            is_refused = all(self.rules.refuse_all(number, each) for each in paths)
            name = self.rules.names[number]
            demand(is_refused, place, f"{name} does not refuse all of it")
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
            own, ticks = Terms(said["terms"], self.domain, place), said["ticks"]
            demand(own.at == terms.at, place, "its demands are of another skeleton")
            is_sure = not own.may_take_less(whole(ticks, place), *key)
            demand(is_sure, place, f"a split of demand {key} may take less")
            bounds[key] = ticks
        self.check_leaf(bounds, path, values, place)


# -------------------------------------------------------------- 8. the choices
SHARED = ("model", "framework", "pins", "rules", "limits", "objective")
CHOICE = ("spec", "facts", "least")
SAME = 1e-7  # share within which values are equal: prices are no whole numbers


def check_choice(said: Any, claims: Claims, place: str) -> None:
    """Check that no plan of another choice is better than the fastest plan."""
    keyed(said, CHOICE, place, "kernels rules cover")
    ours, (spec, facts, ticks) = claims.domain, (said[n] for n in CHOICE)
    demand(all(ours.spec[p] == spec[p] for p in SHARED), place, "of another question")

    def check_leaf(bounds: dict[Path, int], *where: Any) -> None:
        is_sure = ticks is not None and bounds[0, 0] >= whole(ticks, place)
        demand(is_sure, where[-1], f"some plan may take less than {ticks} ns")

    if "kernels" in said:
        # A stage runs its layers for every micro-batch; others fill the pipeline.
        tp, pp, cp, dp, size, layer, fill = wholes(said["kernels"], 7, place)
        keyed(facts, ("gpus", "rates"), place)
        batch, layers = spec["training"]["global_batch"], ours.facts["layers"]
        is_real = min(tp, pp, cp, dp, size) > 0 and batch % (dp * size) == 0
        is_real &= tp * pp * cp * dp == facts["gpus"]
        demand(is_real, place, "its kernels are of no degrees")
        layers -= ours.facts["leading"]
        largest, steps = -(-layers // pp), batch // dp // size
        most = steps * largest * layer + (layers - largest) * fill
        is_sure = whole(ticks, place) * 1_000 <= most
        demand(is_sure, place, f"its kernels take {most} picoseconds")
    else:
        rules = Rules(said["rules"], Domain(facts, spec))
        Cover(rules, check_leaf).walk(said["cover"], (), place)
    for level in spec["objective"]["levels"] if ticks is not None else ():
        both = (
            (spec, facts, ticks),
            (ours.spec, ours.facts, claims.plans["fastest"].ticks),
        )
        theirs, mine = (value(level["metric"], *of) for of in both)
        if abs(theirs - mine) > SAME * mine and level["metric"] != "simplest":
            demand(theirs > mine, place, f"it may have less {level['metric']}")
            break


def value(metric: str, spec: Any, facts: Any, ticks: int) -> float:
    """Return what a level of the objective makes least, up to a common factor."""
    keyed(facts["rates"], (), "rates", "usd_per_mtoken kwh_per_mtoken")
    of_time = ticks / spec["training"]["global_batch"] * facts["rates"].get(metric, 1)
    return float(facts["gpus"] if metric == "gpus" else of_time)


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
    others = [other["spec"] for other in found["others"]]
    if others:
        digest = sha256(canonical(others)).hexdigest()
        yield f"none of {len(others):,} other choices is better: specs sha256 {digest}"
    yield "on trust: terms of time and memory; those of a group are of its best plan"
    numbers = ", ".join(f"{name} {facts[name]:,}" for name in NUMBERS)
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
