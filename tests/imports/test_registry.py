"""A kind of file is one module and its name in the registry, imported when used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import meshwright.imports
from meshwright.imports.registry import KINDS, importer, kinds
from tests.fuzz.good import IMPORTS
from tests.helpers.command import run

TOY = '''
"""A toy: `pair GB_S` is a machine of two GPUs."""

from meshwright.imports.machines.facts import MachineFacts, PeerLinks
from meshwright.imports.registry import MachineImporter
from meshwright.imports.text import fail, whole


def parse(text, name):
    number = whole(text.removeprefix("pair ").strip())
    if number is None:
        fail(name, 1, "expected pair GB_S")
    return number


def to_machine(gb_s, gpu):
    peers = PeerLinks("NVLink", {frozenset("ab"): 1}, link_gb_s=gb_s)
    return MachineFacts(("a", "b"), peers=peers, notes=(f"Two of {gpu.name}.",))


IMPORTERS = {
    "toy_pairs": MachineImporter(sign="^pair ", parse=parse, to_machine=to_machine)
}
'''
SPEC = """\
model: {n_layers: 4, d_model: 512, n_heads: 8, d_ff: 2048, vocab: 32000}
cluster: {toy_pairs: machine.txt, gpu: A100-SXM4-80GB}
training: {seq_len: 1024, global_batch: 8}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the module of a toy kind of file, and one of its files."""
    (tmp_path / "toy_pairs.py").write_text(TOY)
    (tmp_path / "machine.txt").write_text("pair 100\n")
    (tmp_path / "spec.yaml").write_text(SPEC)
    path = [*meshwright.imports.__path__, str(tmp_path)]
    monkeypatch.setattr(meshwright.imports, "__path__", path)
    monkeypatch.setitem(KINDS["machines"], "toy_pairs", "toy_pairs")
    return tmp_path


def test_a_kind_is_added_with_one_module_and_its_name(folder: Path) -> None:
    file, spec = str(folder / "machine.txt"), str(folder / "spec.yaml")
    made = run("import", "toy_pairs", file, "--gpu", "A100-SXM4-80GB")
    assert (made.code, made.stderr[:29]) == (0, "note: Two of a100-sxm-80gb.\nn")
    assert "- {between: [a, b], gb_s: 100.0, latency_us: 1.5}" in made.stdout
    solved = run("solve", spec)
    assert solved.code == 0
    assert " on 2 x a100-sxm-80gb (machine)" in solved.stdout
    refused = run("import", file)
    assert "this looks like toy_pairs: meshwright import toy_pairs" in refused.stderr
    (folder / "spec.yaml").write_text(SPEC.replace("toy_pairs", "toys"))
    assert ", slurm_gres, toy_pairs, ibnetdiscover, " in run("solve", spec).stderr
    assert run("import", "toy_pairs", file).stderr.startswith("error: --gpu: missing;")


@pytest.mark.parametrize("text", ["", 'IMPORTERS = {"toy_odd": 1}'])
def test_a_module_without_an_importer_is_named(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "toy_odd.py").write_text(text)
    sys.modules.pop("meshwright.imports.toy_odd", None)
    monkeypatch.setitem(KINDS["machines"], "toy_odd", "toy_odd")
    expected = r'toy_odd.py: expected IMPORTERS\["toy_odd"\] = MachineImporter'
    with pytest.raises(TypeError, match=expected):
        importer("toy_odd")
    with pytest.raises(KeyError):
        importer("toy_none")


@pytest.mark.parametrize("provided", KINDS)
def test_every_kind_has_good_files(provided: str) -> None:
    assert kinds(provided)
    for kind in kinds(provided):
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
    modules = {module for named in KINDS.values() for module in named.values()}
    code = (
        "import sys; from meshwright.__main__ import main\n"
        f"sys.argv = ['meshwright', *{words}]\n"
        "try: main()\n"
        "finally: print([m for m in sys.modules"
        f" if m.removeprefix('meshwright.imports.') in {modules}])\n"
    )
    command = [sys.executable, "-c", code]
    shell = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert shell.stdout.rstrip().endswith("[]"), shell
    assert shell.returncode == (0 if "--help" in words else 2), shell
