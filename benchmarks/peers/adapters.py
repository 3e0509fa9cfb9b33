"""One function per peer, run by the peer's Python: `adapters.py PEER CLONES < jobs`.

Jobs are published runs as `benchmarks/runs` has them; a function returns seconds and
GiB for each. Nothing of Meshwright is imported, and
nothing of a peer is here: a peer is a package of this Python, or a clone below CLONES.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import resource
import sys
import types
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Job = dict[str, Any]
Prices = list[dict[str, Any]]

GIB = 2**30
ROOMY_GIB = 10_000
"""So much memory that every run is priced, also what a peer says does not fit."""


def clone(name: str, clones: Path) -> Path:
    """Return the folder of a clone, from which modules are imported from now on."""
    path = clones / name
    if not path.is_dir():
        raise FileNotFoundError(f"no clone of it: {path}")
    sys.path.insert(0, str(path))
    return path


def calculon(jobs: list[Job], clones: Path) -> Prices:
    """Return what calculon-ai/calculon says of runs, on its A100 with 80 GB."""
    clone("calculon", clones)
    return [_of_calculon(job, clones) for job in jobs]


def _of_calculon(job: Job, clones: Path) -> dict[str, float]:
    llm = import_module("calculon.llm")
    config = json.loads((clones / "calculon/systems/a100_80g.json").read_text())
    config["mem1"]["GiB"] = ROOMY_GIB
    system, model, run = llm.System(config), job["model"], job["config"]
    is_split = run["sp"] and run["tp"] > 1
    known = {
        "num_procs": job["hardware"]["n_gpus"],
        "tensor_par": run["tp"],
        "pipeline_par": run["pp"],
        "data_par": run["dp"],
        "batch_size": run["global_batch"],
        "microbatch_size": run["micro_batch"],
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead",
        "activation_recompute": {"selective": "attn_only"}.get(
            run["recompute"], run["recompute"]
        ),
        "pipeline_interleaving": run.get("vp", 1),
        "optimizer_sharding": run["zero_stage"] > 0,
        "tensor_par_comm_type": "rs_ag" if is_split else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": is_split and run["recompute"] != "full",
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    best: dict[str, float] = {}
    nets = [(0, 1) if run[name] > 1 else (0,) for name in ("tp", "pp", "dp")]
    names = ("tensor_par_net", "pipeline_par_net", "data_par_net")
    for chosen in product(*nets):
        part = known | dict(zip(names, chosen, strict=True))
        priced = llm.Llm(_application(model), logging.Logger("calculon"))
        try:
            priced.compile(system, llm.Llm.Execution.from_json(part))
            priced.run(system)
        except llm.Llm.Error:
            continue
        stats = priced.get_stats_json(False)
        if not best or stats["total_time"] < best["step_s"]:
            gib = stats["proc_mem_tier1_cap_req"] / GIB
            best = {"step_s": stats["total_time"], "gib": gib}
    return best


def calculon_search(jobs: list[Job], clones: Path) -> Prices:
    """Return the best plan that Calculon's own search lists for the GPUs of runs.

    Its memory of a second tier, overlaps and fused activations are off.
    """
    path = clone("calculon", clones)
    search = import_module("calculon.llm.optimal_execution").OptimalExecution
    config = json.loads((path / "systems/a100_80g.json").read_text())
    config["mem2"]["GiB"] = 0
    found: Prices = []
    for job in jobs:
        with TemporaryDirectory() as folder:
            names = ("application", "system", "output")
            files = {name: f"{folder}/{name}.json" for name in names}
            Path(files["application"]).write_text(json.dumps(_shape(job["model"])))
            Path(files["system"]).write_text(json.dumps(config))
            words = ["llm-optimal-execution", files["application"]]
            words += [
                str(job["hardware"]["n_gpus"]),
                str(job["config"]["global_batch"]),
            ]
            words += ["float16", files["system"], files["output"], "--cpus", "1"]
            words += ["-f", "false", "--no-tp-overlap", "--no-dp-overlap"]
            parser = argparse.ArgumentParser()
            search.create_parser(parser.add_subparsers())
            told, start = _Told(), _cpu_s()
            search.run_command(told, parser.parse_args(words))
            best = json.loads(Path(files["output"]).read_text())["0"]
            took = _cpu_s() - start
        run, step_s = best["execution"], best["stats"]["total_time"]
        plan = {
            "tp": run["tensor_par"],
            "pp": run["pipeline_par"],
            "vpp": run["pipeline_interleaving"],
            "micro_batch": run["microbatch_size"],
            "zero": int(run["optimizer_sharding"]),
            "sequence_parallel": run["tensor_par_comm_type"] != "ar",
            "recompute": run["activation_recompute"],
        }
        row = {"step_s": step_s, "plans": told.plans, "cpu_s": took, "plan": plan}
        found.append(row)
    return found


class _Told:
    """A logger that keeps how many plans were priced."""

    plans = 0

    def info(self, text: str) -> None:
        name, _, count = text.partition(": ")
        self.plans = int(count) if name == "Total executions" else self.plans


def _cpu_s() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(one) for one in both]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _application(model: Job) -> Any:
    return import_module("calculon.llm").Llm.Application(_shape(model))


def _shape(model: Job) -> dict[str, int]:
    return {
        "hidden": model["d_model"],
        "feedforward": model["d_ff"],
        "seq_size": model["seq_len"],
        "attn_heads": model["n_heads"],
        "attn_size": model["d_model"] // model["n_heads"],
        "num_blocks": model["n_layers"],
    }


def llm_analysis(jobs: list[Job], clones: Path) -> Prices:
    """Return what PyPI's llm-analysis says of runs, at the efficiencies it advises."""
    del clones
    analysis = import_module("llm_analysis.analysis")
    config = import_module("llm_analysis.config")
    recompute = analysis.ActivationRecomputation
    modes = {"full": recompute.FULL, "selective": recompute.SELECTIVE}
    found: Prices = []
    for job in jobs:
        model, run = job["model"], job["config"]
        shape = config.ModelConfig(
            name=model["name"],
            num_layers=model["n_layers"],
            n_head=model["n_heads"],
            hidden_dim=model["d_model"],
            vocab_size=model["vocab"],
            max_seq_len=model["seq_len"],
            ffn_embed_dim=model["d_ff"],
        )
        degrees = config.ParallelismConfig(
            tp_size=run["tp"],
            pp_size=run["pp"],
            dp_size=run["dp"],
            sp_size=run["tp"] if run["sp"] else 1,
        )
        told = analysis.LLMAnalysis(
            shape,
            config.get_gpu_config_by_name("a100-sxm-80gb"),
            config.get_dtype_config_by_name("w16a16e16"),
            degrees,
            flops_efficiency=0.5,
            hbm_memory_efficiency=0.9,
        ).training(
            batch_size_per_gpu=run["micro_batch"],
            global_batch_size=run["global_batch"],
            seq_len=model["seq_len"],
            activation_recomputation=modes.get(run["recompute"], recompute.NONE),
            flash_attn=False,
        )
        gib = told["(weight+op_state+grad+act)_memory_per_gpu"] / GIB
        found.append({"step_s": told["latency_per_iter"], "gib": gib})
    return found


def simumax(jobs: list[Job], clones: Path) -> Prices:
    """Return the memory that MooreThreads/SimuMax says: its A100 has PCIe alone."""
    path = clone("SimuMax", clones)
    config = import_module("simumax.core.config")
    simulated = import_module("simumax.core.perf_llm")
    file, found = str(path / "configs/system/a100_pcie.json"), list[dict[str, float]]()
    for job in jobs:
        model, run = job["model"], job["config"]
        is_full, layers = run["recompute"] == "full", model["n_layers"] // run["pp"]
        per_rank = run["global_batch"] // run["dp"]
        priced = simulated.PerfLLM()
        priced.configure(
            model_config=config.ModelConfig(
                model_type="dense",
                model_name=model["name"],
                hidden_size=model["d_model"],
                head_num=model["n_heads"],
                kv_head_num=model["n_kv_heads"],
                head_size=model["d_model"] // model["n_heads"],
                intermediate_size=model["d_ff"],
                layer_num=model["n_layers"],
                vocab_size=model["vocab"],
                use_swiglu=model["gated_mlp"],
            ),
            strategy_config=config.StrategyConfig(
                seq_len=model["seq_len"],
                micro_batch_size=run["micro_batch"],
                micro_batch_num=per_rank // run["micro_batch"],
                dtype="bf16",
                world_size=job["hardware"]["n_gpus"],
                tp_size=run["tp"],
                pp_size=run["pp"],
                interleaving_size=run.get("vp", 1),
                enable_sequence_parallel=run["sp"],
                zero_state=run["zero_stage"],
                enable_recompute=run["recompute"] != "none",
                recompute_granularity="full_block" if is_full else "sdp_only",
                recompute_layer_num=layers,
                use_flash_sdp=False,
                use_math_sdp=True,
                pp_comm_async=False,
            ),
            system_config=config.SystemConfig.init_from_config_file(file),
        )
        priced.run_estimate()
        told = priced.analysis_mem().data
        stages = [told] if "peak_mem" in told else list(told.values())
        peaks = [stage["peak_mem"].split() for stage in stages]
        if any(unit != "GB" for _, unit in peaks):
            raise ValueError(f"peaks in other units: {peaks}")
        found.append({"gib": max(float(number) for number, _ in peaks)})
    return found


def galvatron_search(jobs: list[Job], clones: Path) -> Prices:
    """Return the plans of PKU-DAIR/Hetu-Galvatron's search, by layer, at its price.

    Its costs are measured on GPUs. It has those of Llama 2 7B on one host of 8, whose
    GPU it does not name, so that jobs say sequences and batch alone; plans may take 38
    GiB, its usual limit. `python setup.py build_ext --inplace` makes its core.
    """
    path = clone("Hetu-Galvatron", clones)
    runtime = types.ModuleType("galvatron.core.runtime")
    runtime.__path__ = [str(path / "galvatron/core/runtime")]
    sys.modules[runtime.__name__] = runtime
    return [_by_galvatron(job, path / "galvatron/models") for job in jobs]


def _by_galvatron(job: Job, models: Path) -> dict[str, Any]:
    load = import_module("galvatron.core.arguments").load_with_hydra
    adapter = import_module("galvatron.utils.hf_config_adapter")
    engine = import_module("galvatron.core.search_engine.search_engine")
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        section = "search_engine"
        asked = load(
            str(models / "gpt/scripts/search_dist.yaml"),
            overrides=[
                f"SEQ_LENGTH={job['seq_len']}",
                f"LOG_DIR={folder}",
                f"{section}.batch_size_info.min_bsz={job['global_batch']}",
                f"{section}.batch_size_info.max_bsz={job['global_batch']}",
                f"{section}.model_info.model_config_path="
                f"{models / 'model_configs/llama2-7b.yaml'}",
                f"{section}.profiling_info.time_profile_mode=static",
            ],
            mode="search",
        )
        adapter.resolve_model_config(asked)
        search = engine.GalvatronSearchEngine(asked)
        search.set_search_engine_info(
            str(models / "gpt"),
            adapter.model_layer_configs(asked),
            adapter.model_name(asked),
        )
        start = _cpu_s()
        search.initialize_search_engine()
        search.save_results = lambda best, batch, chunks: found.update(
            cpu_s=_cpu_s() - start,
            step_s=best["time_cost"],
            microbatches=chunks,
            layers=[_of_galvatron(one) for one in best["strategy_list"]],
        )
        search.parallelism_optimization()
    return found


def _of_galvatron(layer: Any) -> dict[str, Any]:
    return {
        "tp": layer.tp_size,
        "ulysses": layer.sp_size,
        "pp": layer.pp_size,
        "dp": layer.dp_size,
        "zero": {"ddp": 0, "zero2": 2, "zero3": 3}[layer.dp_type.value],
        "recompute": "full" if layer.checkpoint else "none",
    }


def megatron(jobs: list[Job], clones: Path) -> Prices:
    """Return the memory report of NVIDIA/Megatron-LM; its file alone is run."""
    path = clone("Megatron-LM", clones) / "megatron/training"
    name, helpers = "report_of_megatron", types.ModuleType("report_of_megatron.utils")
    vars(helpers).update(is_hybrid_model=lambda _: False, print_rank_0=lambda _: None)
    package = types.ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules |= {name: package, helpers.__name__: helpers}
    file = path / "theoretical_memory_usage.py"
    module = importlib.util.spec_from_file_location(f"{name}.report", file)
    assert module is not None
    assert module.loader is not None
    report = importlib.util.module_from_spec(module)
    module.loader.exec_module(report)
    found: Prices = []
    for job in jobs:
        model, run = job["model"], job["config"]
        arguments = types.SimpleNamespace(
            kv_channels=model["d_model"] // model["n_heads"],
            num_attention_heads=model["n_heads"],
            hidden_size=model["d_model"],
            group_query_attention=False,
            num_experts=None,
            swiglu=model["gated_mlp"],
            moe_shared_expert_intermediate_size=None,
            num_layers=model["n_layers"],
            mtp_num_layers=None,
            moe_latent_size=None,
            expert_tensor_parallel_size=run["tp"],
            expert_model_parallel_size=1,
            context_parallel_size=1,
            normalization="LayerNorm",
            multi_latent_attention=False,
            ffn_hidden_size=model["d_ff"],
            padded_vocab_size=model["vocab"],
            untie_embeddings_and_output_weights=not model["tied"],
            pipeline_model_parallel_size=run["pp"],
            tensor_model_parallel_size=run["tp"],
            virtual_pipeline_model_parallel_size=run.get("vp"),
            data_parallel_size=run["dp"],
            world_size=job["hardware"]["n_gpus"],
            use_distributed_optimizer=run["zero_stage"] > 0,
            seq_length=model["seq_len"],
            micro_batch_size=run["micro_batch"],
            sequence_parallel=run["sp"],
            recompute_granularity=run["recompute"],
        )
        count = run["global_batch"] // run["dp"] // run["micro_batch"]
        _, _, mib = report.report_theoretical_memory(arguments, count)
        found.append({"gib": mib / 1024})
    return found


def accelerate(jobs: list[Job], clones: Path) -> Prices:
    """Return what `accelerate estimate-memory` says of training with Adam, mixed fp16.

    It takes the model alone: no micro-batch, and nothing that splits a model over GPUs.
    """
    del clones
    transformers, torch = import_module("transformers"), import_module("torch")
    estimate = import_module("accelerate.commands.estimate").estimate_training_usage
    sizes = import_module("accelerate.utils").calculate_maximum_sizes
    found: Prices = []
    for job in jobs:
        model = job["model"]
        config = transformers.GPT2Config(
            vocab_size=model["vocab"],
            n_positions=model["seq_len"],
            n_embd=model["d_model"],
            n_layer=model["n_layers"],
            n_head=model["n_heads"],
            n_inner=model["d_ff"],
            tie_word_embeddings=model["tied"],
        )
        with torch.device("meta"):
            empty = transformers.AutoModelForCausalLM.from_config(config)
        needs = estimate(sizes(empty)[0], "float16")
        found.append({"gib": max(needs.values()) / GIB})
    return found


AIC_SYSTEMS = {
    "a100-sxm-80gb": "a100_sxm",
    "h100-sxm-80gb": "h100_sxm",
    "l40s-48gb": "l40s",
}
AIC_CACHES = {"fp8": "fp8", "int8": "int8"}
AIC_WEIGHTS = {"fp8": "fp8", "int8": "int8_wo", "int4": "int4_wo"}


def aiconfigurator(jobs: list[Job], _: Path) -> Prices:
    """Return the tokens a second of static batches, NVIDIA's aiconfigurator.

    Every model is described as a Llama of as many weights: where the MLP has two
    matrices, the three of a Llama are two thirds as wide.
    """
    estimate = import_module("aiconfigurator.cli.api").cli_estimate
    found: Prices = []
    with TemporaryDirectory() as folder:
        for job in jobs:
            if job["gpu"] not in AIC_SYSTEMS:
                found.append({"refused": f"no {job['gpu']}"})
                continue
            path = Path(folder) / job["model"]["name"]
            path.mkdir(exist_ok=True)
            (path / "config.json").write_text(json.dumps(_as_llama(job["model"])))
            try:
                told = estimate(
                    str(path),
                    AIC_SYSTEMS[job["gpu"]],
                    mode="static",
                    isl=job["prompt_len"],
                    osl=job["output_len"],
                    batch_size=job["batch"],
                    tp_size=job["tp"],
                    gemm_quant_mode=AIC_WEIGHTS.get(job["precision"], "bfloat16"),
                    kvcache_quant_mode=AIC_CACHES.get(job["kv_precision"], "bfloat16"),
                    fmha_quant_mode="bfloat16",
                )
            except Exception as error:  # a peer may raise what it likes
                found.append({"refused": f"{type(error).__name__}: {error}"[:200]})
                continue
            run_s = (told.ttft + told.tpot * (job["output_len"] - 1)) / 1e3
            tokens = job["batch"] * job["output_len"]
            found.append({"tokens_per_s": tokens / run_s})
    return found


def _as_llama(model: dict[str, Any]) -> dict[str, Any]:
    narrowed = model["d_ff"] if model["gated_mlp"] else model["d_ff"] * 2 // 3
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model["d_model"],
        "intermediate_size": narrowed // 128 * 128,
        "num_attention_heads": model["n_heads"],
        "num_key_value_heads": model["n_kv_heads"],
        "num_hidden_layers": model["n_layers"],
        "vocab_size": model["vocab"],
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": model["tied_embeddings"],
    }


PEERS = {
    "accelerate": accelerate,
    "aiconfigurator": aiconfigurator,
    "calculon": calculon,
    "calculon_search": calculon_search,
    "galvatron_search": galvatron_search,
    "llm_analysis": llm_analysis,
    "simumax": simumax,
    "megatron": megatron,
}


def main() -> None:
    """Price the jobs of stdin; peers print, so that the answer is the last line."""
    logging.disable(logging.WARNING)
    name, clones = sys.argv[1:]
    found = PEERS[name](json.load(sys.stdin), Path(clones))
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main()
