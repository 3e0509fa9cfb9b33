"""A kind of file is one module: found by its file name, imported when it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.imports import machines
from meshwright.imports.registry import FOLDERS, importer, kinds
from tests.fuzz.good import IMPORTS
from tests.helpers.command import run

TOY = '''
"""A toy: `pair GB_S` is a machine of two GPUs."""

from meshwright.imports.imported import Imported
from meshwright.imports.importer import MachineImporter
from meshwright.imports.text import fail, whole


def parse(text, name):
    number = whole(text.removeprefix("pair ").strip())
    if number is None:
        fail(name, 1, "expected pair GB_S")
    return number


def to_topology(gb_s, gpu, gpu_name):
    nodes = [{"name": name, "kind": "gpu"} for name in ("a", "b")]
    link = {"between": ["a", "b"], "gb_s": gb_s, "latency_us": 1}
    return Imported({"nodes": nodes, "links": [link]}, (f"Two of {gpu_name}.",))


IMPORTER = MachineImporter(sign="^pair ", parse=parse, to_topology=to_topology)
'''
SPEC = """\
model: {n_layers: 4, d_model: 512, n_heads: 8, d_ff: 2048, vocab: 32000}
cluster: {toy_pairs: machine.txt, gpu: A100-SXM4-80GB}
training: {seq_len: 1024, global_batch: 8}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder where a toy kind of file is found, and one of its files."""
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "toy_pairs.py").write_text(TOY)
    (tmp_path / "machine.txt").write_text("pair 100\n")
    (tmp_path / "spec.yaml").write_text(SPEC)
    path = [*machines.__path__, str(tmp_path / "machines")]
    monkeypatch.setattr(machines, "__path__", path)
    return tmp_path


def test_a_kind_is_added_with_one_file(folder: Path) -> None:
    file, spec = str(folder / "machine.txt"), str(folder / "spec.yaml")
    made = run("import", "toy_pairs", file, "--gpu", "A100-SXM4-80GB")
    assert (made.code, made.stderr) == (0, "note: Two of a100-sxm-80gb.\n")
    assert "- {between: [a, b], gb_s: 100, latency_us: 1}" in made.stdout
    solved = run("solve", spec)
    assert solved.code == 0
    assert " on 2 x a100-sxm-80gb (machine)" in solved.stdout
    refused = run("import", file)
    assert "this looks like toy_pairs: meshwright import toy_pairs" in refused.stderr
    (folder / "spec.yaml").write_text(SPEC.replace("toy_pairs", "toys"))
    assert ", slurm_gres, toy_pairs, ibnetdiscover, " in run("solve", spec).stderr
    assert run("import", "toy_pairs", file).stderr.startswith("error: --gpu: missing;")


def test_a_module_without_an_importer_is_named(folder: Path) -> None:
    (folder / "machines" / "toy_odd.py").write_text("")
    with pytest.raises(TypeError, match=r"toy_odd.py: expected IMPORTER = MachineImp"):
        importer("toy_odd")
    with pytest.raises(KeyError):
        importer("toy_none")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_kinds_with_good_files(folder: str) -> None:
    for kind in kinds(folder):
        for text in IMPORTS[kind]:
            assert importer(kind).parse(text, "file")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["import", "--help"], ["import", "odd"], ["solve", "spec.yaml"]]
)
def test_kinds_are_listed_without_importing_them(
    words: list[str], tmp_path: Path
) -> None:
    spec = SPEC.replace("toy_pairs: machine.txt", "odd: 1")
    (tmp_path / "spec.yaml").write_text(spec)
    code = (
        "import sys; from meshwright.__main__ import main\n"
        f"sys.argv = ['meshwright', *{words}]\n"
        "try: main()\n"
        "finally: print([m for m in sys.modules if '.imports.machines.' in m])\n"
    )
    command = [sys.executable, "-c", code]
    shell = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert shell.stdout.rstrip().endswith("[]"), shell
    assert shell.returncode == (0 if "--help" in words else 2), shell
