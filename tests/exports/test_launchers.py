"""Each launcher starts the ranks of every host where the plan wants them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import meshwright as mw
from meshwright.exports import LAUNCHERS, TARGETS
from meshwright.exports.target import accelerator
from meshwright.exports.target import target as target_named
from tests.exports.small import PINS, spec_of
from tests.helpers.launches import written
from tests.helpers.plans import best_of

SCONTROL = """#!/usr/bin/env bash
printf '%s\\n' gpu7 gpu9
"""
SRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$CAUGHT"
cat "$SLURM_HOSTFILE" > "$CAUGHT.hosts"
echo "$MASTER_ADDR" > "$CAUGHT.master"
"""


def started(exported: mw.Export, folder: Path) -> tuple[list[str], list[str], str]:
    """Return the words of srun, the host of each task, and the master."""
    folder.mkdir()
    written(exported, folder)
    commands = folder / "commands"
    commands.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "gpu[7,9]", "SLURM_JOB_ID": "1"}
    slurm |= {"SLURM_CPUS_ON_NODE": "96", "CAUGHT": str(folder / "caught")}
    path = f"{commands}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", str(folder / "srun.sh")],
        env={**os.environ, **slurm, "PATH": path},
        check=True,
        cwd="/",
    )
    words = (folder / "caught").read_text().split("\n")
    hosts = (folder / "caught.hosts").read_text().split()
    return words, hosts, (folder / "caught.master").read_text().strip()


def best(target: str, **launcher: Any) -> mw.Export:
    spec = spec_of(target)
    return mw.export(spec, mw.solve(spec, by_kind=False), to=target, **launcher)


def test_slurm_starts_a_task_per_host(tmp_path: Path) -> None:
    exported = best("megatron", launcher="sbatch")
    script = exported["srun.sh"]
    for line in ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"):
        assert f"#SBATCH {line}\n" in script
    words, hosts, master = started(exported, tmp_path / "plan")
    assert (hosts, master) == (["gpu7", "gpu9"], "gpu7")
    assert words[words.index("--cpus-per-task") + 1] == "96"
    assert words[words.index("--ntasks") + 1] == "2"


def test_hosts_of_the_allocation_keep_their_order(tmp_path: Path) -> None:
    exported = best("megatron")
    files = tuple(
        file.model_copy(update={"text": "gpu9\ngpu7\n"})
        if file.name == "hosts"
        else file
        for file in exported.files
    )
    changed = exported.model_copy(update={"files": files})
    _, hosts, master = started(changed, tmp_path / "plan")
    assert (hosts, master) == (["gpu9", "gpu7"], "gpu9")


def test_slurm_starts_a_task_per_gpu_where_hosts_are_not_filled_in_turn(
    tmp_path: Path,
) -> None:
    exported = best("torchtitan")
    lines = exported["hosts"].split()
    words, hosts, _ = started(exported, tmp_path / "plan")
    assert words[words.index("--cpus-per-task") + 1] == "12"
    real = dict(zip(dict.fromkeys(lines), ("gpu7", "gpu9"), strict=True))
    assert hosts == [real[line] for line in lines]
    assert len({*hosts}) == 2


@pytest.mark.parametrize("launcher", ["kubernetes", "skypilot"])
def test_hosts_that_are_not_filled_in_turn_need_slurm(launcher: str) -> None:
    with pytest.raises(mw.SpecError, match="mesh does not fill equal hosts"):
        best("torchtitan", launcher=launcher)


BY_RAY = {name for name in TARGETS if target_named(name).is_by_ray}
"""Targets that no launcher starts; see `test_files`."""


@pytest.mark.parametrize("target", sorted({*PINS} - {"torchtitan"} - BY_RAY))
def test_every_target_has_every_launcher(target: str) -> None:
    assert {*PINS} == {*TARGETS}
    spec = spec_of(target)
    best = best_of(spec)
    assert best is not None
    for launcher in LAUNCHERS:
        exported = mw.export(spec, best, to=target, launcher=launcher)
        names = {file.name for file in exported.files}
        assert "launch.sh" in names
        assert ("srun.sh" in names) == (launcher in ("torchrun", "sbatch"))


def test_kubernetes_has_a_pod_per_host() -> None:
    job = yaml.safe_load(best("megatron", launcher="kubernetes")["job.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert job["spec"]["nprocPerNode"] == "8"
    assert "runPolicy" in job["spec"]  # without it the operator's schema refuses it
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert [replicas[name]["replicas"] for name in ("Master", "Worker")] == [1, 1]
    pod = replicas["Worker"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["name"] == "pytorch"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["volumes"]}
    assert "kueue.x-k8s.io/queue-name" in job["metadata"]["labels"]
    assert json.dumps(job)


def test_skypilot_asks_for_the_gpus_of_the_plan() -> None:
    task = yaml.safe_load(best("megatron", launcher="skypilot")["sky.yaml"])
    assert task["num_nodes"] == 2
    assert task["resources"] == {"accelerators": "H100:8"}
    assert "NODE_RANK=" in task["run"]


@pytest.mark.parametrize(
    ("topology", "name"),
    [("dgx-h100", "H100"), ("dgx-a100", "A100-80GB"), ("dgx-b200", "B200")],
)
def test_gpus_have_the_names_of_skypilot(topology: str, name: str) -> None:
    spec = spec_of("megatron").model_dump()
    asked = mw.load(
        {
            "model": spec["model"],
            "cluster": {"topology": topology},
            "training": {"seq_len": 2048, "global_batch": 16},
        },
        mw.Spec,
    )
    assert accelerator(asked.cluster) == name


def test_another_launcher_is_refused() -> None:
    with pytest.raises(mw.SpecError, match="launcher: 'lsf' is none; accepted: torch"):
        best("megatron", launcher="lsf")
