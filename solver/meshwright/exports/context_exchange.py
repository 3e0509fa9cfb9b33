"""How context parallelism communicates, in the words of Megatron-LM."""

from __future__ import annotations

from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.spec.spec import Spec
from meshwright.spec.training import ContextExchange

_TYPES: dict[ContextExchange, str] = {
    "ring": "p2p",
    "gather": "all_gather",
    "ulysses": "a2a",
}

_REASONS: dict[ContextExchange, str] = {
    "ring": "a ring, as its time is counted",
    "gather": "keys and values are gathered, as their time is counted",
    "ulysses": "tokens for heads, as their time is counted",
}


def cp_comm_type(spec: Spec) -> tuple[str, str]:
    """Return the value of `--cp-comm-type`, and why it is that."""
    exchange = context_exchange_of(spec)
    return _TYPES[exchange], _REASONS[exchange]
