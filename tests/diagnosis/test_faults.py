"""The faults that a run may have: their priors and sizes, and what they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.diagnosis.faults import Case, Fault, Run, faults
from meshwright.explanations.decisions import with_pins
from meshwright.imports.launches.launch import Launch
from meshwright.imports.logs.training_log import Part, PartOf, TrainingLog
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology
from meshwright.spec.training import Overlap

LOG = TrainingLog("megatron_log", "a run", Launch("megatron_log", "", "megatron", ""))

PLAN = "tp=1,pp=2,cp=1,zero=1,micro_batch=4,recompute=full,recompute_layers=any"


def spec_of(cluster: Any = "dgx-h100-pod", **training: Any) -> Spec:
    """Return a spec; `training` has fields of it beside the usual ones."""
    if isinstance(cluster, str):
        cluster = {"topology": cluster, "count": 1}
    training = {"seq_len": 2048, "global_batch": 1024} | training
    fields = {"model": "gpt-1.3b", "framework": "megatron"}
    return load_spec({"cluster": cluster, "training": training} | fields)


@pytest.fixture(scope="module")
def usual() -> Run:
    """Return a run of 32 hosts on two levels of switches."""
    spec = spec_of()
    plan = asked_plan(with_pins(spec, read_plan(PLAN, spec)), Options(tolerance=0.0))
    return Run(spec, plan, LOG)


def by_key(one: Run) -> dict[str, list[Fault]]:
    found: dict[str, list[Fault]] = {}
    for fault in faults(one):
        found.setdefault(fault.key, []).append(fault)
    return found


def rate(divisors: tuple[int, ...]) -> list[str]:
    return [f"1/{divisor} of its rate" for divisor in divisors]


MACHINES = {
    "network": ("network", 0.1, rate((2, 3, 6))),
    "other network": ("network", 0.02, rate((10, 16, 25, 40, 64, 100))),
    "bus": ("network", 0.05, rate((2, 4, 8))),
    "numa": ("host", 0.05, [""]),
    "straggler": ("GPUs", 0.1, ["15% slower", "30% slower", "60% slower"]),
    "clocks": ("GPUs", 0.05, [f"at {n}% of their rate" for n in (85, 70, 58, 48)]),
    "host": ("host", 0.1, [f"{n} times as long" for n in ("1.5", "2", "2.7", "3.6")]),
    "input": ("host", 0.1, [f"{n}% of the step" for n in (15, 35, 80)]),
}


def test_faults_of_machines_have_these_priors_and_sizes(usual: Run) -> None:
    told = {
        fault.key: (fault.kind, fault.prior, [case.size for case in fault.cases])
        for fault in faults(usual)
        if fault.kind not in ("switch", "plan")
    }
    assert told == MACHINES


@pytest.mark.parametrize("said", [False, True])
def test_what_is_said_is_doubted_less_than_what_is_left_open(
    said: bool, usual: Run
) -> None:
    names = {fault.key for fault in faults(usual) if fault.kind in ("switch", "plan")}
    one = replace(usual, said=frozenset(names if said else ()))
    told = [fault for fault in faults(one) if fault.key in names]
    priors = {"attention": 0.02}
    for fault in told:
        assert fault.prior == (0.02 if said else priors.get(fault.key, 0.1))
        assert ("calibrate" in fault.source) is not said


def changed(topology: Topology) -> dict[str, float]:
    """Return the bandwidths of a topology, by name."""
    rates = {level.name: level.gb_s for level in topology.levels}
    rates |= {f"{link.between}": link.gb_s for link in topology.links}
    if topology.scale_out is not None:
        rates[topology.scale_out.name] = topology.scale_out.gb_s
    if topology.host is not None:
        rates |= {"PCIe": topology.host.pcie_gb_s, "host": topology.host.memory_gb_s}
    return rates


def factors(one: Run, case: Case) -> dict[str, float]:
    """Return by how much bandwidths of a case are those of the run, where they differ.

    Asserts that it is the run in all else.
    """
    before, after = (changed(spec.cluster.topology) for spec in (one.spec, case.spec))
    assert before.keys() == after.keys()
    assert case.spec.training == one.spec.training
    found = {name: after[name] / before[name] for name in before}
    return {name: round(by, 12) for name, by in found.items() if by != 1}


def test_slow_links_are_those_between_hosts_or_those_inside_one(usual: Run) -> None:
    told = by_key(usual)
    for key, divisors in (("network", (2, 3, 6)), ("other network", (10, 16, 25))):
        (fault,) = told[key]
        for case, by in zip(fault.cases, divisors, strict=False):
            assert factors(usual, case) == dict.fromkeys(
                ("leaf", "spine"), round(1 / by, 12)
            )
    (bus,) = told["bus"]
    assert [factors(usual, case) for case in bus.cases] == [
        {"nvlink": 1 / by} for by in (2, 4, 8)
    ]


def test_links_of_a_graph_inside_a_host_are_slow(usual: Run) -> None:
    cluster = {"topology": "dgx-1v", "count": 2}
    one = replace(usual, spec=spec_of(cluster, precision="fp16"))
    told, topology = by_key(one), one.spec.cluster.topology
    links = {str(link.between) for link in topology.links}
    assert factors(one, told["bus"][0].cases[0]) == dict.fromkeys(links, 0.5)
    assert topology.scale_out is not None
    network = factors(one, told["network"][0].cases[0])
    assert network == {topology.scale_out.name: 0.5}


def test_the_wrong_socket_halves_what_the_host_has(usual: Run) -> None:
    ((numa,),) = (fault.cases for fault in by_key(usual)["numa"])
    halves = {"PCIe": 0.5, "host": 0.5}
    assert factors(usual, numa) == halves | {"leaf": 0.6, "spine": 0.6}
    assert (numa.host, numa.clocks, numa.slow, numa.waits) == (1.5, 1, 1, 0)
    alone = replace(usual, spec=spec_of("dgx-h100"))
    ((numa,),) = (fault.cases for fault in by_key(alone)["numa"])
    assert factors(alone, numa) == halves


@pytest.mark.parametrize(
    ("key", "field", "values"),
    [
        ("straggler", "slow", [1.15, 1.3, 1.6]),
        ("clocks", "clocks", [0.85, 0.7, 0.58, 0.48]),
        ("host", "host", [1.5, 2, 2.7, 3.6]),
        ("input", "waits", [0.15, 0.35, 0.8]),
    ],
)
def test_a_slow_machine_is_one_factor(
    key: str, field: str, values: list[float], usual: Run
) -> None:
    (fault,) = by_key(usual)[key]
    assert [getattr(case, field) for case in fault.cases] == values
    for case in fault.cases:
        calm = Case(case.size, usual.spec, usual.plan)
        assert replace(case, **{field: getattr(calm, field)}) == calm


def test_what_a_cluster_lacks_cannot_be_slow(usual: Run) -> None:
    parts = [{"topology": name, "count": 1} for name in ("dgx-h100", "dgx-a100")]
    join = {"name": "net", "gb_s": 25, "latency_us": 3, "uplink": "per_gpu"}
    lacking = {
        "one GPU": spec_of({"gpu": "h100-sxm-80gb"}),
        "one host": spec_of("dgx-h100"),
        "unlike": spec_of({"parts": parts, "join": join}),
    }
    network = {"network", "other network"}
    missing = {
        name: MACHINES.keys() - by_key(replace(usual, spec=spec)).keys()
        for name, spec in lacking.items()
    }
    assert missing == {
        "one GPU": network | {"bus", "straggler"},
        "one host": network,
        "unlike": network | {"bus", "numa"},
    }


def test_plans_that_ran_otherwise(usual: Run) -> None:
    plan = usual.plan
    assert plan.recomputes_some_layers
    told = by_key(usual)
    (none,) = (fault for fault in told["recompute"])
    assert none.name == "nothing is recomputed"
    kept = none.cases[0].plan
    assert (kept.recompute, kept.recompute_modules) == ("none", "")
    assert [stage.recompute_layers for stage in kept.stages] == [0, 0]
    (smaller,) = told["micro_batch"]
    assert [
        (case.size, case.plan.micro_batch, case.plan.microbatches)
        for case in smaller.cases
    ] == [
        ("2 of 4", 2, 2 * plan.microbatches),
        ("1 of 4", 1, 4 * plan.microbatches),
    ]
    (slower,) = told["precision"]
    assert slower.name == "matmuls run in tf32, not bf16"
    assert slower.cases[0].plan == plan.model_copy(update={"precision": "tf32"})
    assert slower.cases[0].spec.training.precisions == ("tf32",)
    assert none.cases[0].spec == smaller.cases[0].spec == usual.spec


def test_all_layers_are_recomputed_where_none_were(usual: Run) -> None:
    plan = usual.plan.model_copy(
        update={
            "recompute": "none",
            "micro_batch": 6,
            "stages": tuple(
                stage.model_copy(update={"recompute_layers": 0})
                for stage in usual.plan.stages
            ),
        }
    )
    told = by_key(replace(usual, plan=plan))
    (full,) = told["recompute"]
    assert full.name == "every layer is recomputed"
    assert full.cases[0].plan.recompute == "full"
    assert full.cases[0].plan.recomputes_all_layers
    assert [case.size for case in told["micro_batch"][0].cases] == ["3 of 6"]
    single = plan.model_copy(update={"micro_batch": 1})
    assert "micro_batch" not in by_key(replace(usual, plan=single))


@pytest.mark.parametrize(
    ("machine", "precision", "wider"),
    [
        ("dgx-h100", "fp8", "matmuls run in bf16, not fp8"),
        ("dgx-h100", "fp16", "matmuls run in tf32, not fp16"),
        ("dgx-h100", "tf32", ""),
        ("dgx-1v", "fp16", ""),
    ],
)
def test_matmuls_run_in_the_next_wider_precision_that_the_gpu_has(
    machine: str, precision: str, wider: str, usual: Run
) -> None:
    spec = spec_of(machine, precision=precision)
    plan = usual.plan.model_copy(update={"precision": precision})
    told = by_key(Run(spec, plan, LOG)).get("precision", [])
    assert "".join(fault.name for fault in told) == wider


def test_weights_are_hidden_alone_only_where_they_hide(usual: Run) -> None:
    """Who hides no gradients often hides no gathers either."""
    sizes = {}
    for gradients in (False, True):
        for parameters in (False, True):
            asked = Overlap(gradients=gradients, parameters=parameters)
            spec = usual.spec.having("training", overlap=asked)
            (fault,) = by_key(replace(usual, spec=spec))["overlap.gradients"]
            sizes[gradients, parameters] = [case.size for case in fault.cases]
            others = [case.spec.training.overlap for case in fault.cases]
            assert {one.gradients for one in others} == {not gradients}
            assert [one.parameters for one in others] == [parameters, False][
                : len(others)
            ]
    assert sizes == {
        (True, True): ["", "nor weights"],
        (True, False): [""],
        (False, True): [""],
        (False, False): [""],
    }


def timer(of: PartOf, seconds: float, fastest_s: float | None = None) -> Part:
    return Part("a timer", of, seconds, fastest_s)


def test_timers_of_one_part_add_up(usual: Run) -> None:
    parts = (
        timer("forward", 1.0, 0.8),
        timer("backward", 2.0, 1.6),
        timer("forward and backward", 3.1),
        timer("gradient reduction", 0.25),
        timer("gradient reduction", 0.5),
        timer("other", 9.0),
    )
    one = replace(usual, log=replace(LOG, parts=parts))
    assert one.parts == {"forward": 1.0, "backward": 2.0, "gradients": 0.75}
    assert one.spread == pytest.approx(3.0 / 2.4)
    for left_out in (0, 1):
        fewer = parts[:left_out] + parts[left_out + 1 :]
        assert (
            replace(one, log=replace(LOG, parts=fewer)).parts["forward and backward"]
            == 3.1
        )
    unknown = (timer("forward", 1.0, 0.8), timer("backward", 2.0))
    assert replace(one, log=replace(LOG, parts=unknown)).spread is None
    assert replace(one, log=LOG).spread is None


def test_what_others_wait_for_is_a_gpu_where_there_is_one_host(usual: Run) -> None:
    alone = replace(usual, spec=spec_of({"topology": "dgx-h100", "count": 1}))
    for run, one in ((usual, "node"), (alone, "GPU")):
        (found,) = by_key(run)["straggler"]
        assert found.name == f"one {one} is slow, and all others wait for it"
