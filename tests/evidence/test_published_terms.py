"""The words of publications mean what specs and plans accept."""

from __future__ import annotations

from typing import get_args

from meshwright import catalog
from meshwright.evidence.published_terms import VOCABULARY
from meshwright.spec.plan_fields import RECOMPUTE_MODES, SCHEDULES
from meshwright.spec.training import AttentionKernel, ContextExchange, Overlap


def test_words_stand_for_accepted_values() -> None:
    assert {*VOCABULARY.schedules.values()} <= {*SCHEDULES}
    assert {one.mode for one in VOCABULARY.recompute.values()} <= {*RECOMPUTE_MODES}
    assert {*VOCABULARY.overlap.values()} == {*Overlap.model_fields}
    kernels = {"plain", "flash", *get_args(AttentionKernel)}
    assert {*VOCABULARY.attention} <= kernels
    assert {*VOCABULARY.context_exchanges.values()} <= {*get_args(ContextExchange)}


def test_every_machine_is_of_a_bundled_gpu_and_has_known_links() -> None:
    gpus = catalog.names("topologies/gpus")
    hardware = VOCABULARY.hardware
    for start, machine in hardware.machines.items():
        assert any(gpu == start or gpu.startswith(f"{start}-") for gpu in gpus), start
        assert machine.link in hardware.latency_us


def test_names_of_code_bases_are_sought_in_lower_case() -> None:
    frameworks = VOCABULARY.frameworks
    words = (*frameworks.xla, *frameworks.bf16_gradients, *frameworks.hides_gradients)
    for word in (*words, *VOCABULARY.vendors):
        assert word == word.lower()
