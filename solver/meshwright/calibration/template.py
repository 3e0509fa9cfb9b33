"""A commented file of runs, to fill in and give to `meshwright calibrate`."""

TEMPLATE = """\
# Runs for `meshwright calibrate RUNS -o profile.yaml`: a list, one entry a run.
# Leave out, or leave null, whatever you do not know. Five runs that differ tell more
# than fifty alike: `meshwright probe SPEC` picks them, and writes such a file.

- id: tp4                       # any name, different for each run
  source_id: ours               # one name for all runs of one cluster
  spec: llama2-13b-8xa100       # a file beside this one, or a bundled spec
  plan: tp=4,pp=1,zero=1,micro_batch=1    # or a file; all that `--plan` takes
  measured:
    step_time_s: null           # seconds of a step, once it is steady
    tokens_per_s_per_gpu: null  # instead of step_time_s
    peak_memory_gb: null        # GiB of the fullest GPU
    peak_memory_kind: device    # as nvidia-smi shows it; PyTorch: allocated, reserved
    fits: null                  # true, or false: out of memory; enough by itself

# Without a spec file, a run says model, hardware and plan field by field.
- id: tp2
  source_id: ours
  model:
    {name: llama2-13b, n_layers: 40, d_model: 5120, n_heads: 40, n_kv_heads: 40,
     d_ff: 13824, vocab: 32000, seq_len: 4096, gated_mlp: true, tied: false}
  hardware:
    gpu: A100-80GB-SXM
    n_gpus: 8
    gpus_per_node: 8
    power_limit_w: null         # where nvidia-smi shows less than the GPU's rating
  config:
    dp: 4
    tp: 2
    pp: 1
    sp: true                    # sequence parallelism
    zero_stage: 1
    micro_batch: 1
    global_batch: 64
    recompute: none             # none, selective or full
    precision: bf16
    framework: Megatron-LM
    # Switches of your code. Those left null are found, with their probabilities.
    compile: null               # torch.compile
    attention: null             # flash or plain
    fused: null                 # of norm, rope, activation, softmax, loss, dropout
    overlap: null               # none, or what hides: grad-reduce, param-gather, ...
    cuda_graphs: null
    gradients: null             # bf16 or fp32, in which they are summed
    loss_parallel: null
    loss_chunks: null           # a number
    expert_dispatch: null       # alltoall or deepep
    cp_comm_type: null          # p2p, all_gather or a2a
  measured: {step_time_s: null, peak_memory_gb: null, fits: null}
"""
