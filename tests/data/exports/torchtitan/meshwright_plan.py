"""A plan for torchtitan: --module meshwright_plan --config plan."""

# llama on 16 x h100-sxm-80gb (dgx-h100), torchtitan, bf16, sequence 8,192, batch 128
# tp=2,pp=2,vpp=2,ep=1,dp_replicate=1,dp_shard=4,zero=2,micro_batch=1,microbatches=32,sequence_parallel=true,recompute=selective,schedule=1f1b,offload=none,precision=bf16

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    """Return the configuration of the plan."""
    model_spec = model_registry('8B')                         # the spec's model
    return Trainer.Config(
        model_spec=model_spec,
        loss=ChunkedLossWrapper.Config(
            num_chunks=8,                                     # training.loss_chunks, of the sequence
            loss_fn=CrossEntropyLoss.Config(
                global_vocab_size=decoder_vocab_size(model_spec)
            )
        ),
        optimizer=default_adamw(lr=3e-4),                     # the rate is yours to change
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),  # yours
        hf_assets_path="./assets/hf",                         # the tokenizer: yours to change
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),  # yours
        training=TrainingConfig(
            local_batch_size=32,                              # plan.micro_batch x plan.microbatches: the pipeline splits it
            global_batch_size=128,                            # training.global_batch: 32 micro-batches per step
            seq_len=8192,                                     # training.seq_len
            enable_cpu_offload=False,                         # plan.offload none
            mixed_precision_param='bfloat16',                 # plan.precision bf16
            mixed_precision_reduce='float32',                 # training.gradients
            disable_cuda_graphs=True,                         # neither pipelines nor expert dispatch can be captured
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,                 # plan.dp_replicate
            data_parallel_shard_degree=4,                     # plan.dp_shard
            fsdp_reshard_after_forward='never',               # plan.zero 2
            tensor_parallel_degree=2,                         # plan.tp
            enable_sequence_parallel=True,                    # plan.sequence_parallel
            context_parallel_degree=1,                        # plan.cp
            expert_parallel_degree=1,                         # plan.ep
            pipeline_parallel_degree=2,                       # plan.pp
            pipeline_parallel_schedule='Interleaved1F1B',     # plan.schedule 1f1b, plan.vpp 2
            pipeline_parallel_microbatch_size=1,              # plan.micro_batch
            module_fqns_per_model_part=[                      # plan.stages, of each virtual stage
                ["tok_embeddings", *(f"layers.{i}" for i in range(0, 8))],  # 8 layers
                [*(f"layers.{i}" for i in range(8, 16))],     # 8 layers
                [*(f"layers.{i}" for i in range(16, 24))],    # 8 layers
                [*(f"layers.{i}" for i in range(24, 32)), "norm", "lm_head"],  # 8 layers
            ],
        ),
        activation_checkpoint=SelectiveAC.Config(),           # plan.recompute selective
    )
