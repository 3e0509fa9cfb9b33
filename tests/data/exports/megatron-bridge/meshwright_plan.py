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
    cfg.model = GPTModelProvider()
    cfg.model.tensor_model_parallel_size = 2                  # plan.tp
    cfg.model.sequence_parallel = True                        # plan.sequence_parallel
    cfg.model.pipeline_model_parallel_size = 4                # plan.pp
    cfg.model.pipeline_model_parallel_layout = 'Et*9|t*8|t*8|t*7L'  # plan.stages: layers t of each, embedding E, loss L
    cfg.model.pipeline_dtype = torch.bfloat16                 # plan.precision bf16: what stages send
    cfg.model.context_parallel_size = 1                       # plan.cp
    cfg.model.num_layers = 32                                 # model.n_layers
    cfg.model.hidden_size = 4096                              # model.d_model
    cfg.model.ffn_hidden_size = 14336                         # model.d_ff
    cfg.model.num_attention_heads = 32                        # model.n_heads
    cfg.model.kv_channels = 128                               # model.head_dim
    cfg.model.num_query_groups = 8                            # model.n_kv_heads
    cfg.model.gated_linear_unit = True                        # model.gated_mlp
    cfg.model.activation_func = silu                          # model.details.activation
    cfg.model.normalization = 'RMSNorm'                       # model.norm
    cfg.model.qk_layernorm = False                            # model.qk_norm
    cfg.model.add_bias_linear = False                         # model.bias none
    cfg.model.add_qkv_bias = False                            # model.bias none
    cfg.model.share_embeddings_and_output_weights = False     # model.tied_embeddings
    cfg.model.position_embedding_type = 'rope'                # model.learned_positions
    cfg.model.rotary_base = 10000                             # model.details.rope_theta
    cfg.model.attention_dropout = 0.0                         # model.dropout; 0.1 is Megatron-LM's default
    cfg.model.hidden_dropout = 0.0                            # model.dropout; 0.1 is Megatron-LM's default
    cfg.model.vocab_size = 128256                             # model.vocab, before padding
    cfg.model.should_pad_vocab = True                         # to a multiple of 128 x tp
    cfg.model.seq_length = 8192                               # training.seq_len
    cfg.model.cross_entropy_loss_fusion = True                # training.fused
    cfg.train.micro_batch_size = 1                            # plan.micro_batch
    cfg.train.global_batch_size = 128                         # training.global_batch: 64 micro-batches per step
    cfg.dataset.seq_length = 8192                             # training.seq_len
    cfg.tokenizer.tokenizer_type = 'NullTokenizer'            # yours to change
    cfg.tokenizer.vocab_size = 128256                         # model.vocab
    cfg.train.train_iters = 10                                # yours; the recipe's default is 300,000
    cfg.validation.eval_iters = 0                             # nothing but steps of training is timed
    cfg.validation.eval_interval = 1000                       # train_iters is divided by it
    cfg.scheduler.lr_warmup_iters = 2                         # below train_iters
    cfg.logger.log_interval = 1                               # every step
    cfg.logger.log_throughput = True                          # TFLOP/s beside the step time
    cfg.logger.tensorboard_dir = 'run-969e5f4c/tensorboard'   # of this plan
    cfg.checkpoint.save = 'run-969e5f4c/checkpoints'          # of this plan: another plan's checkpoint is not loaded
    cfg.checkpoint.load = 'run-969e5f4c/checkpoints'          # of this plan: another plan's checkpoint is not loaded
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
