"""The claims of an answer, the parts of its certificate, and the file with hashes."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import Any

import numpy as np

from meshwright import __version__
from meshwright.certificates.cover import Cover
from meshwright.certificates.domain import DECISIONS, Domain
from meshwright.certificates.survey import Found, Need, Survey, told_terms
from meshwright.check.check import predict
from meshwright.cost.job import make_job
from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.frameworks.base.registry import framework_of
from meshwright.planner.candidates import Pricing
from meshwright.planner.degrees import MeshTable
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.memory_fit import capacities, scaled_costs, stages_by_pp
from meshwright.planner.split_bounds import split_ticks
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import complexity, published_codes
from meshwright.plans.skeletons import to_row
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.rules.user_rules import split_dependent
from meshwright.spec.plan_fields import FIELDS, SCHEDULES, TECHNIQUES
from meshwright.spec.run_before import codes_of
from meshwright.spec.spec import Spec

FORMAT = "meshwright-certificate-1"

PARTS = ("spec", "profile", "facts", "rules", "cover", "claims")

GZIP_HEAD = b"\x1f\x8b\x08\x10\0\0\0\0\x02\xff"
"""Of a file with a comment and no time, so that equal answers are equal files."""


def refuse_uncertified(spec: Spec) -> None:
    """Refuse a spec of which no certificate can be written yet.

    Raises:
        SpecError: says what it has.
    """
    cases = {
        "a cluster of unlike parts": bool(spec.cluster.parts),
        "limits.max_link_utilisation": spec.limits.max_link_utilisation is not None,
        "pins.etp": spec.pins.etp is not None,
        "rules on how layers are split, or on times": bool(split_dependent(spec)),
        "pins of layers or recompute_layers": spec.pins.layers is not None
        or spec.pins.stage_recompute is not None,
    }
    for what, has in cases.items():
        if has:
            raise SpecError(f"{spec.title}: no certificate of {what} yet")
    if MeshTable(make_job(spec)).has_choice:
        what = "hosts whose GPUs are not alike"
        raise SpecError(f"{spec.title}: no certificate of {what} yet")


def certificate(spec: Spec, outcome: Outcome, profile: Profile) -> bytes:
    """Return the file that lets others check the answer to a spec.

    Raises:
        SpecError: the answer is not proven, or the spec has what is not certified yet.
        InternalError: a plan fits though the answer says that none does.
    """
    spec = profile.applied_to(spec)
    refuse_uncertified(spec)
    if outcome.status not in ("optimal", "infeasible"):
        raise SpecError(f"{spec.title}: no certificate of an answer that is not proven")
    prepared = prepare(profile.job(spec))
    return _Certified(prepared, outcome, profile).file()


class _Certified:
    """The parts of one certificate."""

    def __init__(self, prepared: Prepared, outcome: Outcome, profile: Profile) -> None:
        self.job, self.spec = prepared.job, prepared.job.spec
        self.prepared, self.outcome, self.profile = prepared, outcome, profile
        self.domain = Domain(self.job, prepared.lattice)
        is_doubted = self.spec.run_before.percent > 0
        self.pricing = Pricing(self.spec, is_doubted)

    def file(self) -> bytes:
        """Return the certificate as the bytes of a file."""
        claims, cover = self._claims()
        tree = cover.told()
        _, profile = digests(self.spec, self.profile)
        parts: dict[str, Any] = {
            "spec": self.spec.model_dump(mode="json"),
            "profile": {"sha256": profile},
            "facts": self._facts(),
            "rules": cover.rule_list.told(),
            "cover": tree,
            "claims": claims,
        }
        return sealed(parts, __version__)

    def _claims(self) -> tuple[dict[str, Any], Cover]:
        """Return the claims, and the cover that shows them."""
        nothing = {"fastest": None, "cheapest": None, "recommended": None, "near": None}
        best = self.outcome.best
        if best is None:
            survey = Survey(self.prepared, self.domain, Need(self.pricing))
            return {"status": "infeasible", **nothing}, Cover(self.domain, survey)
        certificate = self.outcome.certificate
        assert certificate is not None
        fastest = self._told(self.outcome.fastest or best)
        ticks, near = fastest["ticks"], self.outcome.near
        if abs(certificate.bound_s / TICK_S - ticks) > 1:
            title = self.spec.title
            raise SpecError(f"outcome: not the answer to {title} with this profile")
        tolerance = certificate.tolerance if certificate.is_simplest else 0.0
        recommended = self._told(best)
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

    def _told(self, priced: PricedPlan) -> dict[str, Any]:
        return self._told_plan(priced.plan, priced.step_s)

    def _told_found(self, found: Found) -> dict[str, Any]:
        plan = found.plans.plan(found.row, found.split)
        return self._told_plan(plan, predict(self.job, plan)[0])

    def _told_plan(self, plan: Plan, step_s: float) -> dict[str, Any]:
        """Return a plan with its split and terms, which add up to its ticks."""
        row, _ = to_row(self.job.fabric, plan)
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
            "step_s": step_s,
            "terms": told_terms(self.domain, costs, has_stages=True)[0],
        }

    def _facts(self) -> dict[str, Any]:
        """Return what the decisions depend on."""
        spec, model = self.spec, self.spec.model
        words = {field.name: list(field.words) for field in FIELDS if field.words}
        return {
            "gpus": int(np.prod(self.job.fabric.sizes)),
            "layers": model.n_layers,
            "leading": model.leading_layers,
            "heads": model.n_heads,
            "d_ff": model.d_ff,
            "shared_d_ff": model.moe.shared_d_ff if model.moe else 0,
            "experts": model.moe.n_experts if model.moe else 1,
            "batch": spec.training.global_batch,
            "seq_len": spec.training.seq_len,
            "node_gpus": max(spec.cluster.gpus_per_host, spec.cluster.fan_outs[0]),
            "capacity_kib": capacities(self.job)[0],
            "schedules": len(SCHEDULES),
            "stores_scores": bool(spec.training.stores_scores),
            "has_uneven_chunks": framework_of(spec).has_uneven_chunks,
            "precisions": self.domain.precisions.tolist(),
            "offloads": self.domain.offloads.tolist(),
            "ways": self.domain.ways.tolist(),
            "words": words,
            "techniques": {
                field.name: [field.encoded(value) for value in field.plain_values]
                for field in TECHNIQUES
                if field.name in DECISIONS  # without a pin etp is 1
            },
            "published": published_codes(spec),
            "percent": spec.run_before.percent,
            "runs": [list(codes_of(text)) for text in spec.run_before.combinations],
            "common_runs": [list(codes) for codes in spec.run_before.common],
        }


def digests(spec: Spec, profile: Profile) -> tuple[str, str]:
    """Return the sha256 of a spec and of a profile, as certificates state them."""
    parts = profile.applied_to(spec), profile
    ours, theirs = (_sha256(canonical(part.model_dump(mode="json"))) for part in parts)
    return ours, theirs


def sealed(parts: dict[str, Any], version: str) -> bytes:
    """Return the file of a certificate: its parts, and the hashes of all."""
    hashes = {name: _sha256(canonical(parts[name])) for name in PARTS}
    named = [FORMAT, version, *hashes.values()]
    seal = {**hashes, "whole": _sha256(canonical(named))}
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
