"""A plan for Megatron Bridge; launch.sh beside it starts it."""

# llama on 16 x h100-sxm-80gb (dgx-h100), megatron, bf16, sequence 8,192, batch 128
# tp=2,pp=4,vpp=1,ep=1,dp_replicate=1,dp_shard=2,zero=1,micro_batch=1,microbatches=64,sequence_parallel=true,recompute=none,schedule=1f1b,offload=none,precision=bf16

import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from torch.nn.functional import silu


def plan() -> ConfigContainer:
    """Return the configuration of the plan, on made-up data."""
    cfg = _pretrain_common()
    cfg.model = GPTModelProvider(
        tensor_model_parallel_size=2,                        # plan.tp
        sequence_parallel=True,                              # plan.sequence_parallel
        pipeline_model_parallel_size=4,                      # plan.pp
        pipeline_model_parallel_layout='Et*9|t*8|t*8|t*7L',  # plan.stages: layers t of each, embedding E, loss L
        pipeline_dtype=torch.bfloat16,                       # plan.precision bf16: what stages send
        context_parallel_size=1,                             # plan.cp
        num_layers=32,                                       # model.n_layers
        hidden_size=4096,                                    # model.d_model
        ffn_hidden_size=14336,                               # model.d_ff
        num_attention_heads=32,                              # model.n_heads
        num_query_groups=8,                                  # model.n_kv_heads
        kv_channels=128,                                     # model.head_dim
        vocab_size=128256,                                   # model.vocab, before padding
        should_pad_vocab=True,                               # to a multiple of 128 x tp
        gated_linear_unit=True,                              # model.gated_mlp
        activation_func=silu,                                # model.gated_mlp
        normalization='RMSNorm',                             # model.norm
        qk_layernorm=False,                                  # model.qk_norm
        add_bias_linear=False,                               # model.bias none
        add_qkv_bias=False,                                  # model.bias none
        share_embeddings_and_output_weights=False,           # model.tied_embeddings
        position_embedding_type='rope',                      # model.learned_positions
        attention_dropout=0.0,                               # model.dropout
        hidden_dropout=0.0,                                  # model.dropout
        seq_length=8192,                                     # training.seq_len
        cross_entropy_loss_fusion=True,                      # training.fused
    )
    cfg.train.micro_batch_size = 1                            # plan.micro_batch
    cfg.train.global_batch_size = 128                         # training.global_batch: 64 micro-batches per step
    cfg.dataset.seq_length = 8192                             # training.seq_len
    cfg.tokenizer.tokenizer_type = 'NullTokenizer'            # yours to change
    cfg.tokenizer.vocab_size = 128256                         # model.vocab
    cfg.mixed_precision = get_mixed_precision_config('bf16_mixed')  # plan.precision bf16
    cfg.mixed_precision.grad_reduce_in_fp32 = True            # training.gradients
    cfg.ddp.use_distributed_optimizer = True                  # plan.zero 1
    cfg.optimizer.use_distributed_optimizer = True            # plan.zero 1
    cfg.ddp.overlap_grad_reduce = True                        # training.overlap.gradients
    cfg.ddp.overlap_param_gather = True                       # training.overlap.parameters
    cfg.ddp.data_parallel_sharding_strategy = 'no_shard'      # plan.zero 1
    cfg.ddp.use_megatron_fsdp = False                         # plan.zero 1
    cfg.dist.use_tp_pp_dp_mapping = False                     # ranks are tp-cp-ep-dp-pp
    cfg.optimizer.optimizer = 'adam'                          # training.optimizer
    return cfg


if __name__ == "__main__":
    pretrain(plan(), forward_step)
