"""What launches of Megatron-LM say of an indexer and of its loss."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from tests.imports.launches.test_functions import OF_THE_HUB

SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --multi-latent-attention \\
  --experimental-attention-variant dsa --dsa-indexer-n-heads 64 \\
  --dsa-indexer-head-dim 128 --dsa-indexer-topk 2048 --q-lora-rank 512 \\
  --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 \\
  --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --qk-layernorm \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 32 --bf16 {}
"""

RECIPE = OF_THE_HUB.format("GLM-5.2").replace("    return", "    {}\n    return")


@pytest.mark.parametrize(
    ("options", "over", "attention"),
    [
        ("", "none", "plain"),
        ("--dsa-indexer-loss-coeff 0", "none", "plain"),
        ("--dsa-indexer-loss-coeff 0.01", "all", "plain"),
        (
            "--dsa-indexer-loss-coeff 0.01 --dsa-indexer-use-sparse-loss "
            "--dsa-kernel-backend cudnn",
            "picked",
            "flash",
        ),
        ("--dsa-kernel-backend tilelang", "none", "flash"),
        ("--dsa-kernel-backend cudnn --attention-backend unfused", "none", "plain"),
    ],
)
def test_options_of_an_indexer(
    tmp_path: Path, options: str, over: str, attention: str
) -> None:
    """Of what is not given Megatron Core has no loss, and no kernels."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT.format(options))
    found = mw.import_file(path)
    indexer = {"n_heads": 64, "head_dim": 128, "top_k": 2_048}
    assert found.fields["model"]["mla"]["indexer"] == indexer
    assert found.fields["training"]["indexer_loss"] == over
    assert found.fields["training"]["attention"] == attention
    assert not any("not known" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "over"),
    [
        ("cfg.model.dsa_kernel_backend = 'cudnn'", None),
        ("cfg.model.dsa_indexer_loss_coeff = 0.001", None),
        ("cfg.model.dsa_indexer_loss_coeff = 0.0", "none"),
        ("cfg.model.dsa_indexer_use_sparse_loss = False", "all"),
        ("cfg.model.dsa_indexer_use_sparse_loss = True", "picked"),
    ],
)
def test_a_model_of_the_hub_has_a_loss_over_picks(
    tmp_path: Path, line: str, over: str | None
) -> None:
    """Bridge's providers have one (glm5_bridge.py), as specs have by default."""
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE.format(line))
    training = mw.import_file(path).fields["training"]
    assert training.get("indexer_loss") == over
