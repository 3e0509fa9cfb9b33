"""The links of a GPU's board, for files that show the PCIe tree alone.

Files of clouds that NCCL reads often leave NVLink out, since NCCL asks the driver for
it. Without these links an HGX machine would look fifteen times as slow as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.errors import SpecError
from meshwright.imports.machine_facts import PeerLinks, pairs_of
from meshwright.spec.gpu import Gpu

BRIDGED = {"pcie", "nvl", "a30", "a40", "a5000", "a6000", "3090"}
"""Words of the names of cards that a bridge may join in pairs, or not."""

LEAST_ON_BOARD = 6
"""Links of the GPUs that a board joins: V100 has 6, cards with a bridge up to 4."""

LEAST_SWITCHED = 8
"""Links of GPUs on boards with NVSwitches, from A800 on."""

MESHED = (2, 4)
"""Numbers of GPUs that boards join directly, without a switch."""

RACKED = {"gb200", "gb300"}
"""GPUs whose links all lead to the switches of a rack, however few are in a host."""


def board_links(gpus: Sequence[str], gpu: Gpu, notes: list[str]) -> PeerLinks:
    """Return the links that the board of these GPUs has by its data sheet.

    Raises:
        SpecError: the board has links, and there are several ways to join the GPUs.
    """
    links, count = gpu.peer_links or 0, len(gpus)
    if not links or count < 2:
        return PeerLinks()
    if links < LEAST_ON_BOARD or _words(gpu) & BRIDGED:
        notes.append(
            f"The file shows no NVLink. A bridge may join pairs of {gpu.name}; "
            "none is drawn. nvidia-smi topo -m shows it."
        )
        return PeerLinks()
    kind = "XGMI" if any(word.startswith("mi") for word in _words(gpu)) else "NVLink"
    is_meshed = count in MESHED and not _words(gpu) & RACKED
    if kind == "NVLink" and links >= LEAST_SWITCHED and not is_meshed:
        notes.append(
            f"The file shows no NVLink: the {links} NVLinks of each GPU are "
            "assumed to lead to NVSwitches."
        )
        return PeerLinks(kind, ports=dict.fromkeys(gpus, links), is_explicit=True)
    each = links // (count - 1)
    if not each or (kind == "NVLink" and not is_meshed):
        raise SpecError(
            f"the file shows no {kind}, and the {links} links of {gpu.name} "
            f"can join {count} GPUs in several ways; expected nvidia-smi topo -m, or a "
            "bundled machine such as dgx-1v"
        )
    notes.append(
        f"The file shows no {kind}: {each} links are assumed between "
        f"each pair of the {count} GPUs, all {each * (count - 1)} of {links} used."
    )
    return PeerLinks(kind, dict.fromkeys(pairs_of(gpus), each), is_explicit=True)


def _words(gpu: Gpu) -> set[str]:
    return set(re.findall("[a-z0-9]+", gpu.name.lower()))
