"""Real files of machines, from `meshwright import` to a solved plan.

They are others' and not shipped: MESHWRIGHT_SHARED names the folder that has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_import_command import GPU, notes_of, solved
from tests.helpers.command import run
from tests.imports.test_samples import folder


def samples() -> list[Any]:
    """Return the real files of machines: kind, file, and a GPU that they may have."""
    kinds = {
        "nvidia_topo": ("nvidia_smi", GPU),
        "rocm_showtopo": ("rocm_smi", "MI300X"),
        "nccl_topo_xml": ("nccl_xml", GPU),
    }
    shared = folder()
    if shared is None:
        return []
    index = yaml.safe_load((shared / "INDEX.yaml").read_text(encoding="utf-8"))
    return [
        pytest.param(shared / one["file"], *kinds[one["kind"]], id=one["file"])
        for one in index["samples"]
        if one["kind"] in kinds
    ]


@pytest.mark.skipif(not samples(), reason="MESHWRIGHT_SHARED has no samples")
@pytest.mark.parametrize(("file", "kind", "gpu"), samples() or [(Path(), "", "")])
def test_real_machine_is_imported_and_solved(
    file: Path, kind: str, gpu: str, tmp_path: Path
) -> None:
    words = (kind, str(file), "--gpu", gpu, "-o", str(tmp_path / "cluster.yaml"))
    result = run("import", *words)
    if result.code:
        assert result.stderr.startswith(f"error: {file}:"), result
        return
    assert notes_of(result)
    answer = solved(tmp_path)
    assert answer.code == 0, answer.stderr
