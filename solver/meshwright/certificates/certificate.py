"""The claims of an answer, the parts of its certificate, and the file with hashes."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import Any

import numpy as np

import meshwright_verify
from meshwright import __version__
from meshwright.certificates import serving
from meshwright.certificates.cover import Cover
from meshwright.certificates.domain import Domain
from meshwright.certificates.survey import Found, Need, Survey, told_terms
from meshwright.check.check import rows_by_kind
from meshwright.cost.profile import Profile
from meshwright.economics.planned_run import level_value
from meshwright.errors import InternalError, SpecError
from meshwright.frameworks.base.registry import framework_of
from meshwright.planner.candidates import Pricing
from meshwright.planner.families import prepare
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.memory_fit import capacities, scaled_costs, stages_by_pp
from meshwright.planner.mixed_clusters import arrangements
from meshwright.planner.pipeline import LARGEST_HORIZON
from meshwright.planner.split_bounds import split_ticks
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import (
    WHOLE,
    complexity,
    makers_degrees,
    node_gpus,
    published_codes,
)
from meshwright.plans.skeletons import to_row
from meshwright.results.outcome import Outcome
from meshwright.results.serving import ServingOutcome
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.goals import SIMPLEST
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.plan_fields import FIELDS, TECHNIQUES
from meshwright.spec.run_before import codes_of
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import Spec
from meshwright.sweeps.open_choices import OpenChoice, open_choices

FORMAT = "meshwright-certificate-4"

PARTS = ("spec", "profile", "facts", "rules", "cover", "claims", "others")

RATED = ("usd_per_mtoken", "kwh_per_mtoken")
"""Levels of an objective by which clusters differ in more than time and GPUs."""

PICO_S = 1e-12

ROUNDED = 1e-8
"""Share by which whole picoseconds of kernels may add up to less than their seconds."""

GZIP_HEAD = b"\x1f\x8b\x08\x10\0\0\0\0\x02\xff"
"""Of a file with a comment and no time, so that equal answers are equal files."""


def refuse_uncertified(spec: FixedSpec | OpenSpec) -> None:
    """Refuse a spec of which no certificate can be written yet.

    Raises:
        SpecError: says what it has.
    """
    if isinstance(spec, ServingSpec):
        return
    one = spec.choices[0] if isinstance(spec, OpenSpec) else spec
    if one is spec and not spec.cluster.parts:
        return
    several = "unlike parts" if one is spec else "open numbers"
    levels = [level for level in one.objective.levels if level.metric != SIMPLEST]
    further = limits_aside(one)
    if any(level.tolerance for level in levels[:-1]):
        further = "a tolerance before the last level"
    if further:
        told = f"no certificate of {several} and {further} yet"
        raise SpecError(f"{spec.title}: {told}")


def certificate(
    spec: FixedSpec | OpenSpec, outcome: Outcome | ServingOutcome, profile: Profile
) -> bytes:
    """Return the file that lets others check the answer to a spec.

    Raises:
        SpecError: the answer is not proven, or the spec has what is not certified yet.
        InternalError: a plan fits though the answer says that none does.
    """
    refuse_uncertified(spec)
    if outcome.status not in ("optimal", "infeasible"):
        raise SpecError(f"{spec.title}: no certificate of an answer that is not proven")
    others: list[dict[str, Any]] = []
    about = {"profile": {"sha256": digest(profile)}, "others": others}
    if isinstance(spec, ServingSpec):
        if not isinstance(outcome, ServingOutcome) or outcome.title != spec.title:
            raise SpecError(f"outcome: not the answer to {spec.title}")
        return sealed(serving.parts_of(spec, outcome) | about, __version__)
    if not isinstance(outcome, Outcome):
        raise SpecError(f"outcome: not the answer to {spec.title}")
    if isinstance(spec, OpenSpec):
        spec, others[:] = _choices(spec, outcome, profile)
    elif spec.cluster.parts:
        spec, others[:] = _arrangements(spec, outcome, profile)
    parts = _Certified(spec, profile).answered(outcome) | about
    data = sealed(parts, __version__)
    limits = limits_aside(spec)
    if limits:
        _check_without(limits, data, spec.title)
    return data


def _check_without(limits: str, data: bytes, title: str) -> None:
    """Refuse a certificate in which limits that were left aside decide.

    Raises:
        SpecError: a plan that breaks one of them would be better.
    """
    try:
        meshwright_verify.verify(data)
    except meshwright_verify.Refused:
        told = (
            f"no certificate where {limits} decide: a plan that breaks them is better"
        )
        raise SpecError(f"{title}: {told}") from None


def limits_aside(spec: Spec) -> str:
    """Return the limits that a certificate leaves aside: they only take plans away."""
    names = [f"rule {rule.name}" for rule in split_dependent(spec)]
    if spec.limits.max_link_utilisation is not None:
        names.append("limits.max_link_utilisation")
    return " and ".join(names)


def _without_limits(spec: Spec) -> Spec:
    """Return a spec without the limits that its certificate leaves aside."""
    rules = tuple(rule for rule in spec.rules if rule.is_of_decisions)
    limits = spec.limits.model_copy(update={"max_link_utilisation": None})
    return spec.model_copy(update={"rules": rules, "limits": limits})


def _choices(
    question: OpenSpec, outcome: Outcome, profile: Profile
) -> tuple[Spec, list[dict[str, Any]]]:
    """Return the spec that was chosen, and the proofs on all other choices.

    Raises:
        SpecError: the answer is that of another spec.
    """
    answer = outcome.open
    if answer is None or len(answer.choices) != len(question.choices):
        raise SpecError(f"outcome: not the answer to {question.title}")
    chosen = -1 if answer.chosen is None else answer.chosen.number
    spec, others = question.choices[chosen], []
    unit = _unit(outcome)
    for choice in open_choices(question.choices, profile):
        if choice.spec is spec:
            continue
        found = answer.choices[choice.number]
        least = (int(found.bound_s / TICK_S) - 1) * unit
        fits = found.verdict != "none_fits"
        others.append(_slower(choice, least if fits else None, unit, profile))
    return spec, others


def _arrangements(
    question: Spec, outcome: Outcome, profile: Profile
) -> tuple[Spec, list[dict[str, Any]]]:
    """Return the spec of the parts that are used, and the proofs on other ways.

    Raises:
        SpecError: the answer is that of another spec.
    """
    ways = list(arrangements(question))
    known = {one.sentence: one.doubted_s or one.step_s for one in outcome.arrangements}
    chosen = [way.spec for way in ways if way.spec.cluster == outcome.cluster]
    if {way.sentence for way in ways} != {*known} or not chosen:
        raise SpecError(f"outcome: not the answer to {question.title}")
    best_s = known[next(way.sentence for way in ways if way.spec is chosen[0])]
    metrics = {level.metric for level in question.objective.levels}
    is_by_step, unit = metrics <= {"step_s", SIMPLEST}, _unit(outcome)
    others = []
    for way in ways:
        least_s = known[way.sentence]
        if least_s is not None and best_s is not None and is_by_step:
            least_s = best_s
        if way.spec is not chosen[0]:
            least = None
            if least_s is not None:
                least = int(least_s / TICK_S * (1 - ROUNDED)) * unit
            others.append(_Certified(way.spec, profile).slower(least, unit))
    return chosen[0], others


def _unit(outcome: Outcome) -> int:
    """Return the price of a tick in which choices are compared: see `Pricing`.

    Raises:
        SpecError: they are compared by doubted steps, and the least is not proven.
    """
    proof = outcome.certificate
    if proof is None or not proof.doubt:
        return 1
    if not proof.is_simplest:
        told = "whose recommended plan is not proven"
        raise SpecError(f"{outcome.title}: no certificate of several choices {told}")
    return WHOLE


def _slower(
    choice: OpenChoice, least: int | None, unit: int, profile: Profile
) -> dict[str, Any]:
    """Return the proof that a choice's plans cost at least so much, or that none fits.

    A tick has a price of `unit` at least. The kernels of its layers show it, or else a
    cover.
    """
    case = choice.compute.best_case(choice.spec.cluster.gpus)
    if least is None or case is None or case.step_s < least / unit * TICK_S:
        return _Certified(choice.spec, profile).slower(least, unit)
    spec = profile.applied_to(choice.spec)
    return {
        "spec": spec.model_dump(mode="json"),
        "facts": {"gpus": spec.cluster.gpus, "rates": _rates(spec)},
        "kernels": [*case.degrees, *(int(one / PICO_S) for one in case.kernels_s)],
        "least": int(least * (1 - ROUNDED)),
    }


def _rates(spec: Spec) -> dict[str, float]:
    """Return the prices of the cluster that the objective needs, by metric."""
    batch = float(spec.training.global_batch)
    levels = (one for one in spec.objective.levels if one.metric in RATED)
    return {one.metric: level_value(one, spec, spec.cluster, batch) for one in levels}


class _Certified:
    """The parts of one certificate."""

    def __init__(self, spec: Spec, profile: Profile) -> None:
        self.asked = profile.applied_to(spec)
        self.prepared = prepare(profile.job(_without_limits(spec)), keeps_all=True)
        self.job, self.spec = self.prepared.job, self.prepared.job.spec
        self.domain = Domain(self.job, self.prepared.lattice)
        self.pricing = Pricing(self.spec, self.spec.run_before.percent > 0)

    def answered(self, outcome: Outcome) -> dict[str, Any]:
        """Return the parts that show an answer."""
        claims, cover = self._claims(outcome)
        return {**self._shown(cover), "claims": claims}

    def slower(self, least: int | None, unit: int) -> dict[str, Any]:
        """Return the parts that show that no price is less, or that none fits."""
        return {**self._shown(self._cover(least, unit)), "least": least}

    def _cover(self, least: int | None, unit: int = 1) -> Cover:
        """Return the cover that shows the least price of plans, or that none fits.

        It is in ticks where a `unit` is one.

        Raises:
            InternalError: some plan takes less, or fits.
        """
        # No split may have the pinned numbers though memory holds all layers.
        pins = self.spec.pins.stage_recompute
        need = Need(self.pricing, 0 if pins is None else LARGEST_HORIZON)
        if least is not None:
            is_price = unit > 1
            need = Need(self.pricing, *((1, least) if is_price else (least,)))
        survey = Survey(self.prepared, self.domain, need)
        survey.prove(need, (), ())
        for found in survey.refusals.values():
            costs, place, _ = found.row
            assert costs is not None
            row = costs.rows.take(np.array([place]))
            if found.value < need.of_price(self.pricing.of(row))[0]:
                told = "a plan takes less than was proven"
                raise InternalError(f"{self.spec.title}: {told}")
        return Cover(self.domain, survey)

    def _shown(self, cover: Cover) -> dict[str, Any]:
        tree = cover.told()
        return {
            "spec": self.asked.model_dump(mode="json"),
            "facts": self._facts(),
            "rules": cover.rule_list.told(),
            "cover": tree,
        }

    def _claims(self, outcome: Outcome) -> tuple[dict[str, Any], Cover]:
        """Return the claims, and the cover that shows them."""
        nothing = {"fastest": None, "cheapest": None, "recommended": None, "near": None}
        best, limits = outcome.best, limits_aside(self.asked)
        if limits and (best is None or outcome.near):
            what = f"the plans that {limits} take away"
            raise SpecError(f"{self.spec.title}: no certificate of {what} yet")
        if best is None:
            return {"status": "infeasible", **nothing}, self._cover(None)
        certificate = outcome.certificate
        assert certificate is not None
        fastest = self._told((outcome.fastest or best).plan)
        ticks, near = fastest["ticks"], outcome.near
        if abs(certificate.bound_s / TICK_S - ticks) > 1:
            title = self.spec.title
            raise SpecError(f"outcome: not the answer to {title} with this profile")
        tolerance = certificate.tolerance if certificate.is_simplest else 0.0
        recommended = self._told(best.plan)
        known = price = self._price(recommended)
        most_near = int(ticks * (1 + near.within)) if near else -1
        need = Need(self.pricing, ticks, most_near=most_near)
        if tolerance:
            need = Need(self.pricing, ticks, 0, int(known * (1 + tolerance)), most_near)
        survey = Survey(self.prepared, self.domain, need)
        cheapest = recommended
        if tolerance:
            if self._price(fastest) < price:
                cheapest, price = fastest, self._price(fastest)
            survey.find_cheapest(price)
            if survey.cheapest is not None:
                cheapest = self._told_found(survey.cheapest)
                price = self._price(cheapest)
            most = int(price * (1 + tolerance))
            need = Need(self.pricing, ticks, price, most, most_near)
        criteria = self.spec.objective.criteria
        survey.prove(need, criteria, complexity(self.spec, best.plan, criteria))
        claims: dict[str, Any] = {
            "status": "optimal",
            "fastest": fastest,
            "cheapest": cheapest if tolerance else None,
            "recommended": {
                "within": tolerance,
                "criteria": list(criteria),
                "plan": recommended,
            }
            if tolerance
            else None,
            "near": {
                "within": near.within,
                "plans": [self._told_found(found) for found in survey.near],
            }
            if near
            else None,
        }
        return claims, Cover(self.domain, survey)

    def _price(self, told: dict[str, Any]) -> int:
        rows = self.domain.skeletons(
            tuple(told["terms"]["at"][:5]), np.array([told["terms"]["at"][5:]])
        )
        return int(told["ticks"] * self.pricing.of(rows)[0])

    def _told_found(self, found: Found) -> dict[str, Any]:
        return self._told(found.plans.plan(found.row, found.split))

    def _told(self, plan: Plan) -> dict[str, Any]:
        """Return a plan with its split and terms, which add up to its ticks."""
        row, place = to_row(self.job.fabric, plan)
        if self.job.gpu_kinds:
            kinds = [one.paths for _, one in rows_by_kind(self.job, row, place)]
            row = row.on_meshes(row.paths, row.mesh, tuple(kinds))
        costs = scaled_costs(self.job, row)
        ((_, stages),) = stages_by_pp(self.job, costs)
        layers = np.array([[stage.layers for stage in plan.stages]])
        again = np.array([[stage.recompute_layers for stage in plan.stages]])
        # Where every layer is recomputed, that is part of each layer.
        again = again * bool(costs.recompute[0])
        split = zip(layers[0].tolist(), again[0].tolist(), strict=True)
        return {
            "split": [list(pair) for pair in split],
            "ticks": int(split_ticks(stages, layers, again)[0]),
            "terms": told_terms(self.domain, costs, has_times=True, has_stages=True)[0],
        }

    def _facts(self) -> dict[str, Any]:
        """Return the numbers of the spec that the decisions depend on."""
        spec = self.spec
        words = {field.name: list(field.words) for field in FIELDS if field.words}
        return {
            "gpus": int(np.prod(self.job.fabric.sizes)),
            "leading": self.spec.model.leading_layers,
            "node_gpus": node_gpus(spec),
            "capacity_kib": [
                capacities(kind)[0] for kind in self.job.gpu_kinds or (self.job,)
            ],
            "schedules": len(self.domain.schedules),
            "stores_scores": bool(spec.training.stores_scores),
            "has_uneven_chunks": framework_of(spec).has_uneven_chunks,
            "offloads": self.domain.offloads.tolist(),
            "ways": self.domain.ways.tolist(),
            "words": words,
            "techniques": {
                field.name: [field.encoded(value) for value in field.plain_values]
                for field in TECHNIQUES
            },
            "published": published_codes(spec),
            "makers": makers_degrees(spec),
            "percent": spec.run_before.percent,
            "runs": [list(codes_of(text)) for text in spec.run_before.combinations],
            "common_runs": [list(codes) for codes in spec.run_before.common],
            "rates": _rates(spec),
        }


def digest(part: FixedSpec | Profile) -> str:
    """Return the sha256 of a spec, or of a profile, as certificates state it."""
    return sha256_of(part.model_dump(mode="json"))


def sha256_of(part: object) -> str:
    """Return the sha256 of data, written as JSON."""
    return _sha256(canonical(part))


def sealed(parts: dict[str, Any], version: str) -> bytes:
    """Return the file of a certificate: its parts, and the hashes of all."""
    seal = {name: sha256_of(parts[name]) for name in PARTS}
    return packed({"format": FORMAT, "version": version, "seal": seal, **parts})


def packed(whole: dict[str, Any]) -> bytes:
    """Return the file of a certificate that has its hashes."""
    text = canonical(whole) + b"\n"
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(text) + packer.flush()
    body += struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)
    comment = f"sha256:{_sha256(body)}".encode()
    return GZIP_HEAD + comment + b"\0" + body


def canonical(value: object) -> bytes:
    """Return JSON in the one form that is hashed: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
