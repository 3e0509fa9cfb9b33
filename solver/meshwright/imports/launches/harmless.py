"""Options of training that change neither a plan nor its price, by their names.

Data, rates of optimizers, logs, checkpoints and evaluation are named by a few words in
all frameworks. What is named otherwise, and read by nobody, is unknown: it may matter.
"""

from __future__ import annotations

import re

SECTIONS = """
    data dataset dataloader tokenizer validation validator checkpoint checkpointer
    checkpoints profiling profiler metrics logger logging lr_scheduler scheduler rng
    debug tensorboard csv_monitor wandb comet comms_logger flops_profiler job general
    monitor_config rerun_state_machine straggler nvrx_straggler inprocess_restart comm
    tokens env_vars special_tokens
"""
"""Sections of configurations without a setting of the plan."""

BEGINNINGS = """
    data_ dataset dataloader tokenizer vocab_file merge_file train_data valid_data
    test_data per_split blend split mock_data eod_mask reset_position reset_attention
    num_workers num_dataset_builder no_create_attention_mask
    lr learning_rate min_lr max_lr warmup weight_decay adam_ sgd_momentum muon_
    start_weight_decay end_weight_decay clip_grad gradient_clipping max_grad_norm
    max_norm override_opt use_checkpoint_opt init_method_std
    initial_loss_scale loss_scale hysteresis min_loss_scale
    moe_aux_loss moe_z_loss moe_router_load_balancing_type moe_router_bias_update
    log_ logging tensorboard wandb comet mlflow swanlab timing_log report_to run_name
    steps_per_print wall_clock profile use_pytorch_profiler dump_ moe_per_layer_logging
    print_args config_logger check_for_nan no_check_for_nan rerun_mode dry_run
    eval save load ckpt no_save no_load dist_ckpt async_save auto_detect_ckpt finetune
    pretrained_checkpoint use_dist_ckpt enable_msc disable_msc
    exit_ train_iters train_samples train_epochs num_train_epochs num_epochs max_steps
    steps seed distributed_timeout distributed_backend nccl_communicator local_rank
    gc_ manual_gc empty_unused zero_allow_untested zero_force_ds_cpu
    hub_ push_to_hub overwrite_ hf_assets experiment project entity
    tpu_ downcast_bf16 trackio_ val_set_size eot_tokens plot_ max_samples
    use_tensorboard
    preprocessing_ ddp_timeout resume_ decoupled_ tiktoken_ no_mmap_bin_files
    rollout_ sglang_ num_rollout n_samples_per hf_checkpoint prompt_data colocate rm_
    kl_ use_kl_loss eps_clip entropy_coef advantage_estimator input_key label_key
    apply_chat_template balance_data ref_load
    fp8_amax_ mtp_loss_scaling num_warmup_steps initial_scale_power
"""
"""Beginnings of the last part of a name."""

ENDS = """_path _dir _folder _interval _freq _warmup_steps _seed"""
"""Ends of the last part of a name."""

WORDS = """
    decay_ratio decay_type betas eps beta1 beta2 momentum name description params
    global_vocab_size debug _comment bias_correction model_name
    env_vars train_env_vars job_name trust_remote_code remove_unused_columns
    per_device_eval_batch_size skip_getting_attention_mask_from_dataset
    use_persistent_ckpt_worker
"""
"""The last part of a name, whole."""


def _one_of(words: str) -> str:
    return f"(?:{'|'.join(words.split())})"


_SECTION = re.compile(rf"{_one_of(SECTIONS)}\..*")
_LAST = re.compile(rf"{_one_of(BEGINNINGS)}.*|.*{_one_of(ENDS)}|{_one_of(WORDS)}")


def is_harmless(name: str) -> bool:
    """Return whether an option of a name is known to change no plan and no price."""
    last = name.rpartition(".")[2]
    return bool(_SECTION.fullmatch(name) or _LAST.fullmatch(last))
