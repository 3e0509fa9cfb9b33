"""Options of frameworks that users may write where a spec has a name of its own."""

from __future__ import annotations

OPTION_NAMES: dict[str, str] = {
    **dict.fromkeys(
        (
            "tensor_model_parallel_size", "tensor_parallel_size", "tp_size",
            "tensor_parallel_degree", "tensor_parallel", "autotp_size",
            "tensor_parallelism",
        ),
        "pins.tp",
    ),
    **dict.fromkeys(
        (
            "pipeline_model_parallel_size", "pipeline_parallel_size", "pp_size",
            "pipeline_parallel_degree", "pipeline_parallel", "num_stages",
        ),
        "pins.pp",
    ),
    **dict.fromkeys(
        (
            "virtual_pipeline_model_parallel_size", "vp_size", "vp",
            "num_virtual_stages_per_pipeline_rank",
        ),
        "pins.vpp",
    ),
    **dict.fromkeys(
        ("context_parallel_size", "context_parallel_degree", "cp_size"), "pins.cp"
    ),
    **dict.fromkeys(
        (
            "expert_model_parallel_size", "expert_parallel_degree", "ep_size",
            "expert_parallel_size",
        ),
        "pins.ep",
    ),
    **dict.fromkeys(("data_parallel_size", "dp_size"), "pins.dp"),
    "data_parallel_replicate_degree": "pins.dp_replicate",
    "data_parallel_shard_degree": "pins.dp_shard",
    **dict.fromkeys(("sp", "sequence_parallelism"), "pins.sequence_parallel"),
    **dict.fromkeys(
        (
            "micro_batch_size", "mbs", "train_micro_batch_size_per_gpu",
            "local_batch_size", "per_device_train_batch_size",
        ),
        "pins.micro_batch",
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "num_microbatches"), "pins.microbatches"
    ),
    **dict.fromkeys(("zero_stage", "stage"), "pins.zero"),
    **dict.fromkeys(
        ("global_batch_size", "train_batch_size", "gbs"), "training.global_batch"
    ),
    **dict.fromkeys(
        ("seq_length", "sequence_length", "max_seq_len", "context_length"),
        "training.seq_len",
    ),
    **dict.fromkeys(("dtype", "mixed_precision"), "training.precision"),
    "num_layers": "model.n_layers",
    "num_hidden_layers": "model.n_layers",
    "hidden_size": "model.d_model",
    "num_attention_heads": "model.n_heads",
    "num_query_groups": "model.n_kv_heads",
    "num_key_value_heads": "model.n_kv_heads",
    "ffn_hidden_size": "model.d_ff",
    "intermediate_size": "model.d_ff",
    "vocab_size": "model.vocab",
    **dict.fromkeys(("nodes", "num_nodes", "nnodes", "num_machines"), "cluster.count"),
}  # fmt: skip
"""By an option of Megatron-LM, torchtitan, DeepSpeed, Accelerate or a config.json, the
field that says it here."""
