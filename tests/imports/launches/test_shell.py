"""Scripts are read as bash would run them, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.imports.launches.megatron import MEGATRON, MEGATRON_YAML
from meshwright.imports.launches.shell import read_script
from meshwright.imports.launches.shell_values import unmarked
from meshwright.imports.read import read_launch
from meshwright.imports.registry import MOST_OF_LAUNCH


def words_of(text: str) -> list[str]:
    """Return the words of the last command of a script."""
    return [unmarked(word.text)[0] for word in read_script(text, "s.sh").runs[-1]]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("run a 'b c' \"d e\" f\\ g", ["run", "a", "b c", "d e", "f g"]),
        ("run a \\\n  b # c\n", ["run", "a", "b"]),
        ("A=8\nrun $A ${A} \"x$A\" '$A'", ["run", "8", "8", "x8", "$A"]),
        ("run ${A:-4} ${B-5} ${C:=6}", ["run", "4", "5", "6"]),
        ("A=1\nrun ${A:-4} ${A:+7} ${B:+8}", ["run", "1", "7"]),
        ("A=(x 'y z')\nrun ${A[@]} \"${A[@]}\"", ["run", "x", "y", "z", "x", "y z"]),
        ('A=(x y)\nA+=(z)\nrun "${A[*]}" "$@"', ["run", "x y z"]),
        ('A="--x 1"\nA="$A --y 2"\nrun $A', ["run", "--x", "1", "--y", "2"]),
        (
            "N=4\nrun $(expr 16 / $N) $(expr 2 \\* $N - 1) $(expr $X)",
            ["run", "4", "7", "$(expr $X)"],
        ),
        ("N=4\nrun $((8*$N)) $((N / 2 + 1)) $((X))", ["run", "32", "3", "$((X))"]),
        ("run $X `date` $(date)", ["run", "${X}", "`date`", "$(date)"]),
        ("run a > log 2>&1 < in b | tee x; run a 2>&1 | cat", ["cat"]),
        ("X=1 run a &> log", ["run", "a"]),
        ("cat <<EOF > f\nrun $(\nEOF\nrun b", ["run", "b"]),
        ("srun -l bash -c \"run $A 'b c'\"", ["srun", "-l"]),
        ("bash -c 'run a'", ["run", "a"]),
        ("C='run a'\neval $C b", ["run", "a", "b"]),
        ("export A=1 B=2\nrun $A$B", ["run", "12"]),
    ],
)
def test_words_are_those_of_bash(script: str, words: list[str]) -> None:
    assert words_of(script) == words


@pytest.mark.parametrize(
    ("test", "is_taken"),
    [
        ("[ $A = 8 ]", True),
        ("[ $A -gt 8 ]", False),
        ("[[ $A != 8 ]]", False),
        ("[ ! $A -lt 8 ]", True),
        ('[ -z "$B" ]', True),
        ('[ -n "$A" ] && [ $A = 8 ]', True),
        ("[ $A = 7 ] || [ $A = 8 ]", True),
    ],
)
def test_conditions_on_known_values_are_decided(test: str, is_taken: bool) -> None:
    script = f"A=8\nB=\nif {test}; then X=--yes; else X=--no; fi\nrun $X"
    assert words_of(script) == ["run", "--yes" if is_taken else "--no"]
    guarded = f"A=8\nB=\nX=(a)\n{test} && X+=(--yes)\nrun ${{X[@]}}"
    if " && " not in test and " || " not in test:
        assert ("--yes" in words_of(guarded)) == is_taken


CASE = """case "{word}" in
    small|'tiny') X=--small; Y=--one ;;
    (big*)
        X=--big
        Y=--two
        ;;
    *) X=--other
esac
run $X $Y
"""


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("tiny", ["--small", "--one"]),
        ("$A", ["--big", "--two"]),
        ("huge", ["--other", "--before"]),
    ],
)
def test_the_clause_of_a_known_word_is_read(word: str, words: list[str]) -> None:
    text = f"A=biggest\nY=--before\n{CASE.format(word=word)}"
    assert words_of(text) == ["run", *words]


def test_no_clause_of_an_unknown_word_is_read() -> None:
    text = "Y=--y\n" + CASE.format(word="$1")
    assert words_of(text) == ["run", "${X}", "--y"]
    assert read_script(text, "x.sh").undecided == [2]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("f() {\n run $A $1 ${2:-x}\n}\nA=1\nf b", ["run", "1", "b", "x"]),
        ("function f {\n local y=$1; shift; run $y \"$@\"\n}\nf a 'b c'",
         ["run", "a", "b c"]),
        ("function f() { run ${@:2}; }\nf a b c\n", ["run", "b", "c"]),
        ("f() { { run in $1; }; }\ng() { f $1$1; }\ng 4", ["run", "in", "44"]),
        # The arguments of a script, and those around a call, are others.
        ("f() { run $1; g 3; run $1; }\ng() { X=$1; }\nf 2", ["run", "2"]),
        # What nothing calls counts as long as nothing else is there.
        ("f() {\n run $A\n}\nA=1\nif [ $X = a ]; then f; fi", ["run", "1"]),
        ("f() { run a; }\nrun b", ["run", "b"]),
        ("f() { f; run a; }\nf", ["run", "a"]),
        ("if (( 1 )); then run a; fi\nrun b", ["run", "b"]),
        ("f() {\nrun a", ["run", "a"]),
    ],
)  # fmt: skip
def test_functions_have_the_values_of_their_call(script: str, words: list[str]) -> None:
    assert words_of(script) == words


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=2\nsbatch <<EOT\n#!/bin/bash\nrun $A \\$B\nEOT\n", ["run", "2", "${B}"]),
        ("A=2\nsbatch <<'EOT'\nA=3\nrun $A\nEOT\n", ["run", "3"]),
        ("ID=$(sbatch --parsable <<EOT\nrun a\nEOT\n)\n", ["run", "a"]),
        ("srun -N 2 bash -s << 'E'\nrun a\nE\n", ["run", "a"]),
        ("cat > j.sh <<E\n#!/bin/sh\nrun a\nE\nsbatch -N 2 ./j.sh\n", ["run", "a"]),
        ("cat > j.sh <<E\n#!/bin/sh\nrun a\nE\nchmod +x j.sh\n./j.sh\n", ["run", "a"]),
        ("cat <<EOT\nrun a\nEOT\nrun b\n", ["run", "b"]),
    ],
)
def test_scripts_in_here_documents_are_read(script: str, words: list[str]) -> None:
    last = next(
        words
        for words in reversed(read_script(script, "s.sh").runs)
        if words[0].text == "run"
    )
    assert [unmarked(word.text)[0] for word in last] == words


def test_functions_that_are_not_called_are_spare() -> None:
    script = read_script("f() { run a; }\nrun b\n", "s.sh")
    assert [words[1].text for words in script.runs] == ["a", "b"]
    assert script.spare == 1


def test_functions_that_call_each_other_come_to_an_end() -> None:
    text = "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(9))
    assert read_script(f"{text}f9() {{ run a; }}\nf0\n", "s.sh").runs
    many = "".join(f"f{n}() {{ {f'f{n + 1}; ' * 40}}}\n" for n in range(9))
    with pytest.raises(SpecError, match="at most 10,000 words within others"):
        read_script(f"{many}f9() {{ run a; }}\nf0\n", "s.sh")


def test_slurm_sets_variables_to_what_a_job_asks_for() -> None:
    text = (
        "#SBATCH --nodes=4\n#SBATCH --gres=gpu:h100:8\n"
        "run $SLURM_NNODES ${SLURM_JOB_NUM_NODES:-1} $((SLURM_NNODES * 8)) "
        "$SLURM_GPUS_ON_NODE $SLURM_NTASKS"
    )
    assert words_of(text) == ["run", "4", "4", "32", "8", "${SLURM_NTASKS}"]
    beside = text.replace("\n#SBATCH --gres", " --exclusive --gres")
    beside = beside.replace(":8\n", ":8 # not --nodes=2\n")
    assert words_of(beside) == words_of(text)
    assert words_of(beside.replace("--nodes=", "-N")) == words_of(text)
    inner = text.replace("$", "\\$").replace("=4", "=$N")
    job, _ = read_script(f"N=4\nsbatch <<E\n{inner}\nE\n", "s.sh").runs
    assert [word.text for word in job[:5]] == ["run", "4", "4", "32", "8"]


def test_what_only_a_run_decides_is_left_out_and_said() -> None:
    text = (
        "A=(--x)\nif [ $HOST = a ]; then\n  A+=(--y)\nelse\n  A+=(--z)\nfi\nrun ${A[@]}"
    )
    script = read_script(text, "s.sh")
    assert [word.text for word in script.runs[-1]] == ["run", "--x"]
    assert script.undecided == [2]


def test_words_of_arrays_keep_their_lines() -> None:
    words = read_script("A=(\n --x\n --y 2\n)\nrun ${A[@]}", "s.sh").runs[-1]
    assert [word.line for word in words] == [5, 2, 3, 3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('run "a', "s.sh:1: a quote \" that is not closed"),
        ("a\nrun ${A", "s.sh:2: ${ that is not closed"),
        ("A=(\n b", "s.sh:1: ( that is not closed"),
        ("A=(\n B=(c)\n)", "s.sh:2: an array inside an array"),
        ("A=(" * 1_000, "s.sh:1: an array inside an array"),
        ("x" * (MOST_OF_LAUNCH + 1), "at most 1,000,000 characters"),
        ("a\n" * 20_001, "at most 20,000 words"),
        ("a=$((1+$((2))))\n" * 10_001, "at most 10,000 words within others"),
        ("bash -c 'a b'\n" * 5_001, "at most 10,000 words within others"),
        ("A=aaaaaaaaaa\n" + "A=$A$A$A$A\n" * 12, "values of at most"),
        ("A=" + "a" * 900 + '\nrun "' + "$A " * 9_000 + '"', "s.sh:2: expected values"),
        ("A=(" + "a " * 450 + ")\nrun " + "${A[@]}" * 2_000, "s.sh:2: expected values"),
        ("eval " * 3 + "'eval $X'\nX='eval $X'\n", ""),
        ("X='bash -c \"$X\"'\n" * 9 + "$X", ""),
    ],
)  # fmt: skip
def test_hostile_scripts_are_read_or_refused(text: str, told: str) -> None:
    if not told:
        read_script(text, "s.sh")
        return
    with pytest.raises(SpecError) as caught:
        read_script(text, "s.sh")
    assert told in str(caught.value)


def test_a_list_where_a_word_is_expected_is_no_traceback() -> None:
    heads = "--num-attention-heads 8 --num-experts 4"
    launch = MEGATRON.parse(f"{heads} --optimizer adam sgd", "s.sh")
    assert launch.value("training.optimizer") is None
    assert "the optimizer of the spec is priced" in launch.unjudged[-1]
    nested = "MODEL_ARGS:\n  --hidden-size: 8\n  --num-experts: 4\n  --moe-layer-freq:"
    with pytest.raises(SpecError, match="expected layers without experts first"):
        MEGATRON_YAML.parse(f"{nested} [[0], [1]]\n", "s.yaml")


@pytest.mark.parametrize("wrap", ["--wrap ", "--wrap="])
def test_the_command_that_sbatch_wraps_is_read(tmp_path: Path, wrap: str) -> None:
    script = tmp_path / "submit.sh"
    script.write_text(
        "NODES=${1:-4}\n"
        f"sbatch -N $NODES --gpus-per-node=8 {wrap}"
        '"srun torchrun --nnodes=\\$SLURM_NNODES --nproc-per-node=8 pretrain_gpt.py '
        '--micro-batch-size 1 --tensor-model-parallel-size 4"\n'
    )
    launch = read_launch(script)
    assert (launch.value("tp"), launch.value("gpus")) == (4, 32)
    assert not launch.unset
