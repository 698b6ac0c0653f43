"""The JSON of the command line: a schema per command in ``docs/schemas``, and the tables of ``docs/command-line.md``.

``python scripts/schemas.py`` writes both anew, from what the commands print for :data:`CASES`. A key that appears for
the first time needs a line in :data:`KEYS`. ``tests/test_schemas.py`` holds what commands print against the schemas.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import roofline as rl
from roofline.cli import main
from roofline.cli.app import EXAMPLES
from roofline.cli.commands import app as _app  # noqa: F401  registers the examples
from roofline.measurement import Measurement
from roofline.measurement.calibration import Calibration
from roofline.measurement.tuning.tune import Tuning
from roofline.measurement.tuning.variants import Problem, Variant

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "schemas"
PAGE = ROOT / "docs" / "command-line.md"

#: Files that the examples read.
FILES = {
    "ops.csv": "op,dtype,m,n,k,time_us\ngemm,bf16,4096,4096,4096,190\ngemm,bf16,4096,4096,4096,900\n"
               "gemm,bf16,4096,4096,4096,30\n",
    "sweep.csv": "batch,time_ms\n5,15.91\n30,15.02\n50,17.63\n100,33.46\n200,61.5\n400,119.85\n",
    "times.csv": "name,time_us\nmm,30\n",
    "requests.jsonl": '{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}\n' * 2,
    "rows.csv": 'op,dtype,shape\ngemm,bf16,"{""m"": 64, ""n"": 4096, ""k"": 4096}"\n',
}  # fmt: skip

_DECODE = "gpt2 h100-sxm --phase decode -S 512"
#: Calls of each schema, beside the examples of the help: what else its JSON may hold.
CASES = (
    "chips", "chips epyc-9654", "chips wormhole-n150", "models", "models resnet50",
    "estimate resnet50 t4,h100-sxm --dtype fp16", f"estimate {_DECODE} -B 1 --tp 2 --weights int8",
    f"estimate {_DECODE.replace('h100-sxm', 'dgx-h100')} -B 1 --tp 2 --by-level",
    f"estimate {_DECODE} -B 8 --mode graph", f"estimate {_DECODE} --dtype fp32 --tf32",
    f"estimate {_DECODE.replace('h100-sxm', 'tpu-v5e')} -B 1 --by-level",
    f"estimate {_DECODE.replace('h100-sxm', 'xeon-8480')} -B 1", "train gpt2 xeon-8480 -B 1 -S 64",
    "batch resnet50 h100-sxm --mode graph", f"batch {_DECODE}",
    "predict rows.csv h100-sxm --regime warm", "predict rows.csv wormhole-n150",
    "compare resnet50 --chips h100-sxm,grayskull-e150", "compare gpt2 --chips h100-sxm --phase decode -S 64 -B 1,2",
    f"check {_DECODE} -B 1 --measured 1us", f"check {_DECODE} -B 1 --measured 100ms --mode graph",
    "check gpt2 h100-sxm --phase train -B 8 -S 512 --measured 70ms",
    "train resnet50 h100-sxm -B 32", "train gpt2 rtx-4090 -B 16 -S 1024", "estimate gpt2 rtx-4090 -B 1024 -S 1024",
    "request gpt2 rtx-4090 --prompt 1000 --new-tokens 2 -B 1024",
    "memory-plan gpt2 rtx-4090 --phase decode -B 1024 -S 1024", "train gpt2 h100-sxm -B 8 -S 512 --dp 2 --zero 1",
    "timeline gpt2 h100-sxm --phase decode -S 64 --prefetch 1",
    f"sweep-chip {_DECODE} -B 1 --mode graph --set l2=1..2MiB --set cores=66,132 --points 2",
    "advise llama-3-70b h100-sxm --phase decode -S 512", "advise resnet18 tpu-v5e -B 4",
    "advise resnet18 epyc-9654 -B 1",
    "optimize resnet18 h100-sxm -B 1 --without formats,kernels --error-budget 0", "optimize --replay plan.toml",
    "optimize gpt2 h100-sxm -S 64 --objective cost --price 2 --batch 1,8 --without kernels",
    "optimize gpt2 h100-sxm --phase train -S 64 -B 8 --devices 2", "optimize --diff plan.toml plan.toml",
    "estimate resnet18 wormhole-n150 -B 1 --mode graph", "sweep-chip resnet50 h100-sxm --set memory_bandwidth=x1,x2",
    "timeline gpt2 h100-sxm --phase decode -S uniform:low=1,high=64 --leave 0.1 --trips 2 --samples 9",
    "scaling resnet50 h100-sxm --devices 1,3", "request gpt2 t4 --prompt 8 --new-tokens 1",
    "request gpt2 xeon-8480 --prompt 8 --new-tokens 2",
    "serve gpt2 h100-sxm --prompt 64 --new-tokens 8 --qps 1,1e6 --spec 2:0.5 --weights fp8 --price 2",
    "serve gpt2 h100-sxm --prompt 64 --new-tokens 8 --concurrency 1,4 --prefill-chip l4 --ttft 1us --backend vllm",
    "cache gpt2 h100-sxm --prompt 64 --new-tokens 4 --cache bf16,int8 --trace requests.jsonl --offload 1GiB",
    "cache gpt2 h100-sxm --prompt 64 --new-tokens 4",
    "plan gpt2 --chips h100-sxm --prompt 64 --new-tokens 8 --counts 1 --weights own --chunk 2048 --backend vllm",
    "serve gpt2 h100-sxm --prompt 64 --new-tokens 8 --concurrency 1,4 --simulate --requests 20 --ttft 1s --tpot 1s",
    "serve gpt2 h100-sxm --trace requests.jsonl",
    "fleet nosuch gpt2 --chips t4 --phase decode --limits latency=1ns --no-gains --workers 0 -o others",
    "codesign 'gpt2 decode dtype=bf16 context=64' --set bandwidth=1,2TB/s --objective energy",
    "fuse gpt2 -S 64",
    "pipeline resnet18 tpu-v5e -B 1 --dtype bf16 --level main", "fuse gpt2 h100-sxm -S 64 --policy chains",
    "fuse gpt2 -S 64 --pair layers.0.mlp.up,layers.0.mlp.down",
    "fuse gpt2 h100-sxm -S 64 --pair layers.0.mlp.up,layers.0.mlp.gelu_new.cube",
    "sweep sweep.csv", "trace times.csv", "trace examples/block_before.json.gz",
    "trace examples/block_before.json.gz examples/block_after.json.gz --diff",
    "trace examples/two_ranks", "trace examples/block_after.json.gz --kernels",
    "memory-plan gpt2 l4 -S 64 --level main", "graph gpt2", "graph resnet18 -B 1 --all",
    "graph resnet18 h100-sxm --kernels -B 1",
    f"plot {_DECODE} -B 8 -o roofline.svg", f"plot {_DECODE} -B 1,8 -o sweep.svg",
    f"plot {_DECODE.replace('h100-sxm', 'h100-sxm,l4')} -B 8 -o roofline.svg",
)  # fmt: skip

#: What each key means; the unit of its figure in brackets.
KEYS = {
    # the parts of memory that a chart stacks
    **{f"{part}_bytes": f"memory of {part.replace('_', ' ')} [byte]"
       for part in ("weights", "kv_cache", "inputs", "activations", "workspace", "reserve")},
    "each_s": "expected time of one run of a kernel that runs several times [s]",
    "subjects": "what is laid upon each other", "of": "which of them",
    "roof_flops_per_s": "what the roofs allow at its intensity [FLOP/s]", "above_roof": "faster than the roofs allow",
    # what it is an output of
    "schema": "name and version of the schema", "model": "the program", "phase": "prefill, decode, forward or train",
    "dtype": "number format", "chip": "the chip, or a list of them",
    "cluster": "the cluster that its devices are in", "mode": "eager, graph or compiled",
    "passes": "what was done to the program, first to last", "sizes": "its sizes by name", "batch": "batch",
    "seq": "length of a prompt or a sequence", "context": "context of a decode step", "rows": "the rows",
    "devices": "devices, all together; names of them in a trace", "tf32": "which fp32 kernels run in tf32",
    "estimate": "the row of roofline estimate",
    # advice and plans
    "saved": "what all of it saves", "before": "figures of the program as given", "after": "figures after the plan",
    "together_s": "time with this and all above it [s]", "instead": "next best of its kind",
    "no_help": "changes that save nothing to speak of", "fits_after": "whether the memory suffices with all of it",
    "bound_after": "what bounds it then", "tried": "plans that were estimated",
    "gap": "how much faster any plan of these moves could be at most; 0 where all were tried",
    "improvement": "what is to be improved, before over after", "noise": "of the formats, over the signal",
    "error_class": "exact, 16-bit, 8-bit or 4-bit", "validation": "the program before and after, run in numpy",
    "agrees": "whether they compute the same", "move": "the step in words", "changes": "what it may change numerically",
    "needs": "what must be there for its gain",
    "saves_low_s": "the least that it saves, where both predictions err alike [s]",
    "saves_high_s": "the most that it saves [s]", "certainty": "sure, likely or unsure",
    "front": "plans that no other beats in objective, memory and error at once", "plan": "its steps",
    "planned_s": "expected time when the plan was made [s]", "versions": "what the plan was made with",
    "differs": "in what two plans differ beside their steps",
    # figures
    "time_s": "expected time; of a part or an operator, its time [s]", "low_s": "low end of the expected range [s]",
    "high_s": "high end of the expected range [s]", "floor_s": "speed of light by the datasheet [s]",
    "host_s": "time that the host needs [s]", "device_s": "sum of the kernels, which a CUDA graph takes [s]",
    "measured_s": "measured time [s]", "expected_s": "expected time [s]",
    "flops": "FLOPs of contractions [FLOP]", "vector_flops": "all other arithmetic [FLOP]", "bytes": "traffic [byte]",
    "intensity": "arithmetic over traffic [FLOP/byte]", "bound": "what bounds it", "mfu": "model FLOPs utilisation",
    "mbu": "memory bandwidth utilisation", "hfu": "hardware FLOPs utilisation", "tokens_per_s": "throughput [1/s]",
    "items_per_s": "throughput [1/s]", "memory_bytes": "memory by part [byte]",
    "capacity_bytes": "memory of the chip [byte]", "fits": "whether the memory suffices",
    # plans
    "attention_dp": "groups that attend to sequences of their own", "backend": "vllm, sglang or trtllm",
    "binding": "which limit keeps more users, or fewer chips, from it", "by_chip": "the best of each chip",
    "cache": "format of the KV cache", "chunk": "tokens of a step of a group at most", "command": "words of a command",
    "config": "what goes into the backend's YAML file", "decode_servers": "servers that decode",
    "ep": "groups that the experts are spread over whole",
    "chips_left_out": "chips that were not looked at, and why",
    "nothing": "what is nearest where nothing is within the limits, and what would do", "pp": "stages of a pipeline",
    "prices": "of a chip for an hour, by chip", "qps": "requests in a second that come at random",
    "runner_up": "the best of another layout, format or chip", "servers": "how many servers",
    "tp": "devices that share every layer", "weights": "format of the weights",
    "within_limits": "candidates within the limits",
    "would_fit": "changes with which it would fit", "change": "what is changed",
    "need_bytes": "what the changed program needs [byte]",
    "zero": "stage of ZeRO", "micro_batch": "what a device runs at once",
    "share": "share of the whole", "count": "how often it runs", "calls": "calls per iteration",
    "calibrated": "measured, transferred or prior",
    "uncertainty": "shares of the classes of kernels in how wide the range is",
    "not_modelled": "what the prediction leaves out",
    "notes": "what a reader should know", "reason": "why", "ratio": "measured over expected",
    "bandwidth_bytes_per_s": "bandwidth of memory [byte/s]", "bytes_per_s": "achieved traffic [byte/s]",
    "flops_per_s": "rate of arithmetic in the time of the row [FLOP/s]", "lost_s": "time beyond what is expected [s]",
    "lasted_s": "from start to end of its launches, also where others ran [s]",
    # estimate, batch, compare, train
    "history": "what each pass did: figures before and after", "best_batch": "the batch to run",
    "ridge_batch": "first batch whose compute time exceeds its memory time at calibrated rates",
    "ridge_batch_datasheet": "the same at the datasheet's rates",
    "ridge_share": "share of the best throughput at ridge_batch",
    "near": "share of the best throughput that counts as the best", "best_share": "share that best_batch has",
    "peak_items_per_s": "best throughput within the limits [1/s]",
    "batch_by_share": "smallest batch with such a share of the throughput; of a sweep, of large batches",
    "limit": "what limits the batch: memory, latency, size; of a context, also positions",
    "limit_batch": "largest batch within the limits", "largest_batch": "the most that fits",
    "memory_limit_bytes": "memory allowed [byte]",
    "latency_limit_s": "time allowed [s]", "ridge_by_kernel": "ridge of each kernel",
    "best": "the row of the best batch or load",
    "best_chip": "the chip of the best throughput", "elasticity": "% less time per 1 % improvement, by figure",
    "what_if": "time and speed-up with better figures", "layout": "how the devices share the work",
    "model_flops": "FLOPs by the model [FLOP]", "hardware_flops": "FLOPs that run [FLOP]", "tokens": "tokens of a step",
    "images": "images of a step", "items": "items to train on", "time_for_items_s": "time for them [s]",
    "part": "part of the time",
    # timeline
    "streams": "streams of kernels", "prefetch": "layers whose weights come from the host ahead of their turn",
    "overlap": "whether, or how, communication runs beside computation",
    "serial_s": "everything one after the other [s]",
    "gain_s": "what overlap saves against that [s]", "least_s": "no order of it takes less [s]",
    "longest_path_s": "longest path through what must follow each other [s]",
    "busiest": "engine or resource that needs the most time", "loads_s": "least time of each for its work [s]",
    **{f"critical_{by}s_s": f"what the end waits for, by {by} [s]" for by in ("engine", "layer", "op")},
    "engines": "what each engine runs, and how long it waits", "engine": "name of the engine",
    "tasks": "what it runs", "critical_s": "time on the critical path [s]",
    "host_bytes": "weights that come from the host [byte]", "buffer_bytes": "room for them on the device [byte]",
    "in_parts": "collectives that run in parts beside matmuls", "left_whole": "those that would gain nothing",
    "layer": "the layer that it is in", "start_s": "when it starts [s]", "end_s": "when it ends [s]",
    "alone_s": "time while nothing runs at the same time [s]", "critical": "whether the end waits for it",
    "waits_for": "what let it start by ending",
    "drawn": "what each quantity that differs from run to run is drawn from",
    "error_s": "standard error of the mean [s]",
    **{f"p{each}_s": f"so many of 100 draws take less: {each} [s]" for each in (50, 95, 99)},
    **{f"p{each}": f"so many of 100 draws are below: {each}" for each in (50, 95, 99)},
    "at_means_s": "time with every size at its mean [s]", "samples": "draws", "seed": "of the draws",
    "quantity": "what was drawn, or the time that follows [s]", "least": "the smallest of the draws",
    "most": "the largest of the draws",
    # sweep-chip, grids of cores
    "mapping": "how its products are spread over a grid of cores, and time and traffic by level",
    "base_s": "time on the chip as it is [s]", "figures": "figures of the chip that vary",
    "readings": "what each figure buys, in words",
    # scaling, request
    "stops_paying": "devices beyond which more of them save less than least_gain",
    "least_gain": "share of the time that more devices must save to pay",
    "skipped": "numbers of devices that cannot share it, with the reason",
    "speed_up": "throughput over that of the fewest devices; of stages, of the last over the first",
    "efficiency": "of a chip, its shares of the peaks; of devices, speed-up over their growth",
    "communication_s": "time in collectives [s]", "communication_share": "their share of the device's time",
    "tokens_per_s_per_device": "throughput of one device [1/s]",
    "images_per_s_per_device": "throughput of one device [1/s]", "block": "tokens of a block of the KV cache",
    "shared_prefix": "first tokens of the prompt that all sequences have in common",
    "time_to_first_token_s": "time of the prefill [s]", "time_per_token_s": "mean time of a further token [s]",
    "time_per_token_p50_s": "its median [s]", "time_per_token_p99_s": "its 99th percentile [s]",
    # serve
    "users": "requests in the system, running or waiting", "rate_per_s": "requests answered in a second [1/s]",
    "running": "requests that run at a time", "decoding": "sequences that a decode step has, on average",
    "ttft_s": "time to the first token in the steady state [s]", "ttft_low_s": "its lower end [s]",
    "ttft_high_s": "its upper end [s]",
    "ttft_first_wave_s": "mean time to the first token where all users begin at once [s]",
    "tpot_s": "time per further token [s]", "tpot_low_s": "its lower end [s]", "tpot_high_s": "its upper end [s]",
    "tokens_per_s_per_chip": "throughput of one chip [1/s]", "tokens_per_s_per_user": "pace that a user sees [1/s]",
    "goodput_per_s": "requests answered within the limits in a second [1/s]",
    "mixed_share": "share of the steps that read prompts", "meets": "whether both times are within the limits",
    "cost_per_million": "price of a million new tokens", "energy_per_million_j": "energy of a million new tokens [J]",
    "formats": "number formats of weights, activations and cache", "server": "how it schedules, and its cache",
    "limits": "limits that were given: times [s], requests a second, memory [byte], error",
    "speculation": "tokens drafted and accepted, if any", "prefill": "servers that only read prompts, if any",
    "load": "what the load is: users in a closed loop, or the rate of random arrivals",
    "running_limit": "requests whose cache fits at a time",
    "largest_rate_per_s": "random arrivals beyond which a queue grows without end [1/s]",
    "price_per_chip_hour": "as given", "watts_per_chip": "as given, else the power limit [W]",
    "decode_steps": "steps after the prefill", "peak_bytes": "the most memory at any token [byte]",
    "peak_token": "the token with the most memory", "token": "number of the new token",
    "done_s": "time from the start until it is done [s]", "cache_ideal_bytes": "KV cache, each token once [byte]",
    "cache_used_bytes": "KV cache in use [byte]", "cache_reserved_bytes": "KV cache in whole blocks [byte]",
    "total_bytes": "memory of all parts [byte]",
    # serve --simulate
    "simulated": "each load step by step", "requests_from": "where its requests came from, and how often",
    "requests": "requests that count", "duration_s": "time that was simulated [s]",
    "requests_per_s": "answers a second [1/s]", "ttft_limit_s": "limit of the first token [s]",
    "tpot_limit_s": "limit of each further token [s]", "good": "share of the requests within both limits",
    "goodput": "answers a second within both limits [1/s]", "running_mean": "requests that run, on average",
    "waiting_mean": "requests that wait, on average", "waiting_most": "the most that wait",
    "cache_room_tokens": "tokens for which the cache has blocks", "cache_most_tokens": "the most that are reserved",
    "cached_share": "share of the prompts that was there", "preempted": "times that a request gave its blocks back",
    "timeline": "means over equal spans of time", "waiting": "requests that wait",
    "max_s": "its largest [s]", "p90_s": "nine of ten take no longer [s]", "trace": "the recorded requests",
    # cache
    "hit_curve": "what a cache of the least recent use hits, by its room", "room_tokens": "tokens that have room",
    "hits": "share of the prompts' tokens that are there", "prefix_tokens": "tokens at the beginning of a prompt",
    "lengths": "what is saved where so many tokens are there, and what copies take",
    "saved_s": "time that reading the prompt is shorter [s]", "fetch_s": "time to copy from the host [s]",
    "copies_s": "the same, by format [s]", "cache_format": "number format of keys and values",
    "prompts_stay": "where keys and values of prompts that were read stay: none, device, host (and device)",
    "bytes_per_token": "KV cache of a token on one device [byte]", "waste": "share of the blocks that no token uses",
    "prefix_lost_tokens": "tokens of the shared prefix in no whole block", "sequences": "sequences that fit",
    "device_hits": "share of a prompt that is on the device", "host_hits": "share that comes from the host",
    "recompute_s": "time to read the whole prompt [s]", "step_s": "time of a decode step [s]",
    "break_even_tokens": "tokens from which on a copy takes less time than it saves",
    # fuse
    "policy": "fusion policy", "kernels": "kernels, how many or which", "accesses": "elements read and written",
    "spill_bytes": "traffic of spilled registers [byte]", "registers": "registers of a thread, the fullest",
    "kernel": "name of the kernel", "ops": "its operators", "unfused_accesses": "accesses without fusion",
    "unfused_bytes": "traffic without fusion [byte]", "first": "the earlier kernel, or its number",
    "second": "the later kernel", "fusible": "whether they can be one kernel", "policies": "policies that fuse them",
    "together": "the kernels that become one", "before_bytes": "traffic apart [byte]",
    "after_bytes": "traffic as one [byte]", "before_s": "time apart [s]", "after_s": "time as one [s]",
    "reasons": "why, or why not", "hurts": "what fusing costs", "saves_bytes": "traffic saved [byte]",
    "saves_s": "time saved [s]",
    # memory-plan
    "levels": "what is taken of each memory, or moved there", "level": "the memory, by the chip's own name",
    "stored_bytes": "what is there before the run [byte]", "arena_bytes": "what tensors share that come and go [byte]",
    "live_bytes": "the most that they need at once [byte]", "fragmentation": "arena over live bytes",
    "spilled_tensors": "tensors that go out and come back", "spilled_out_bytes": "what goes out [byte]",
    "spilled_back_bytes": "what comes back [byte]", "spill_s": "time of main memory for both [s]",
    "spill_cost_s": "what the run takes longer because of them [s]",
    "loaded_ahead_bytes": "weights that come while the kernel before theirs runs [byte]",
    "hidden_s": "time that this saves [s]", "main_bytes": "traffic of main memory [byte]",
    "on_chip_s": "time if all that kernels hand on stayed on chip [s]", "tensor": "name of the tensor",
    "offset_bytes": "where it begins [byte]", "size_bytes": "how large it is [byte]", "spilled": "whether it goes out",
    "first_kernel": "the first kernel that needs it there", "last_kernel": "the last one",
    # layouts
    "given_layout": "layout that the kernel has", "best_layout": "layout that makes the program fastest",
    "layout_copies": "copies between layouts, as it is, all in one layout, and of the best mix",
    "given_s": "time as the program is [s]", "best_s": "time of the best mix [s]",
    "channels_first_s": "time with channels first [s]", "channels_last_s": "time with channels last [s]",
    # pipeline
    "what": "what was done", "nodes": "operators, how many",
    "saves": "what it saves of each figure against the stage before", "tiles": "contractions and their tiles",
    "tile": "its elements along each axis", "matmuls": "matmuls with their fastest schedule and their library's time",
    "compulsory_bytes": "operands and result once [byte]", "moved_bytes": "what the tile moves [byte]",
    # check, trace, sweep, ops
    "verdict": "as_expected, slow, very_slow or impossible; of a sweep, its shape",
    "efficiency_s": "what good kernels lose against the floor [s]", "traced": "whether causes were measured in a trace",
    "normal": "what looks wrong and is not", "lower_bound_s": "no run takes less [s]",
    "causes": "what time was lost to",
    "candidates": "what else it may be", "advice": "what would make it faster", "evidence": "what shows it",
    "fix": "what to do", "option": "the option of the command line; of a model, its size or option",
    "call": "the same in Python", "source": "the file, or where a figure is published",
    "format": "format of the file; of a weight",
    "partial": "whether only a part of the file was read", "timed": "whether the file has starts",
    "on_cpu": "whether operators ran on the CPU", "iterations": "iterations averaged",
    "iterations_found_by": "how they were found", "busy_s": "time in kernels [s]", "idle_s": "time between them [s]",
    "idle": "idle time by reason [s]", "communication": "collectives: all, exposed, overlapped [s]",
    "copies": "host copies: all, exposed, overlapped [s]", "unknown": "operators without a formula",
    "host_ops": "operators that took long on the CPU", "waterfall": "parts that add up to the time [s]",
    **{f"{what}_{when}": f"{words} of the trace {when}" for when in ("before", "after")
       for what, words in (("source", "the file"), ("iterations", "iterations averaged"),
                           ("calls", "calls per iteration"), ("kernels", "kernels of an operator"))},
    **{f"time_{when}_s": f"time of an iteration, a part or an operator {when} [s]" for when in ("before", "after")},
    "change_s": "what it takes more after than before [s]", "parts": "parts that add up to the time [s]",
    "place": "what is around the operator on the host", "outcome": "what became of it",
    "sources": "the file of each rank", "ranks": "each rank; of a collective, those that took part",
    "imbalance": "by which share the rank with the most compute exceeds the mean",
    "collective": "name of the collective",
    "order": "its number in its group and iteration; of tiles, axes from the outermost loop inwards",
    "group": "name of the process group; of a schedule, rows of blocks walked together",
    "elements": "elements of its input on one rank",
    "wait_s": "time before the last rank has come [s]", "transfer_s": "time from then to the end [s]",
    "exposed_s": "time without compute beside it [s]", "exposed_wait_s": "of that, before the last rank has come [s]",
    "spread_s": "time between the first and the last rank [s]",
    "late_s": "time between the last rank and the one before it [s]", "last_rank": "rank that came last most often",
    "last": "in which share it did; number of the last kernel", "mean_s": "mean time, of a launch or a request [s]",
    "memory_peak": "most memory that was allocated, when, and what lay in it then",
    "op": "operator", "role": "what runs it",
    "kind": "class of operator; of a point, what it is: kernel and program are predicted",
    "shapes": "shapes of its inputs",
    "formula": "what it was timed with", "launches": "kernels that run; of a trace, per iteration",
    "arithmetic": "arithmetic [FLOP]",
    "flops_share": "share of the peak", "bytes_share": "share of the bandwidth", "above": "whether it is above a roof",
    "label": "cause of the time lost", "proposal": "what to do", "counters": "what the profiler recorded besides",
    "column": "column of the times", "regime": "where operands lie when a kernel starts", "counts": "rows by verdict",
    "predicted_us": "expected time [us]", "low_us": "low end of the expected range [us]",
    "high_us": "high end of the expected range [us]", "floor_us": "speed of light by the datasheet [us]",
    "activation_bytes": "memory of activations [byte]", "dram_bytes": "read and written at main memory [byte]",
    "l2_bytes": "read and written at the cache that all cores share [byte]",
    "bound_level": "the memory level, or compute, whose roof is the lowest over the kernel",
    "compute_floor_s": "arithmetic at the peak of its format [s]",
    "error": "why the row could not be judged or predicted",
    "row": "number of the row", "shape": "sizes of the operator", "reading": "the verdict in words",
    "marginal_s": "cost per item [s]", "knee_batch": "batch where floor and cost per item meet",
    "saturated_items_per_s": "throughput that ever larger batches approach [1/s]",
    "saturated_share": "share of that which the largest batch has, by the fit",
    "best_items_per_s": "best measured throughput [1/s]",
    "recommended_batches": "least and most batch to run", "fit_shape": "shape of the fit",
    "fit_error": "mean relative error of the fit", "comparison": "measured against predicted, in words",
    "fitted_s": "time by the fit [s]",
    # chips, models, graph
    "vendor": "vendor", "year": "year", "matrix_flops_per_s": "peaks of matmuls by format [FLOP/s]",
    "vector_flops_per_s": "peaks of other arithmetic by format [FLOP/s]", "aliases": "other names",
    "figure": "name of a figure", "value": "its value", "unit": "its unit", "note": "remark",
    "family": "family of models", "parameters": "parameters", "phases": "phases that it has",
    "active_parameters": "parameters that a token uses", "parameters_published": "parameters that the publisher names",
    "parameters_source": "where", "operators": "operators of the program",
    "positions": "positions of a sequence that the model is made for", "sizes_needed": "sizes without a value",
    "description": "description", "options": "options", "name": "name", "symbols": "sizes without a value",
    "totals": "sums over the program", "blocks": "repeated layers, folded; blocks of a launch",
    "index": "number of the node", "meaning": "what it does", "inputs": "tensors read", "outputs": "tensors written",
    "read_bytes": "bytes read [byte]", "write_bytes": "bytes written [byte]",
    "bytes_alone": "traffic as a kernel of its own [byte]", "kernel_number": "number of its kernel",
    "operator": "name of the operator", "runs_as": "operator that the kernel is timed as",
    "step": "its place in the kernel", "steps": "operators of the kernel",
    # schedules
    "bm": "rows of a block", "bn": "columns of a block", "bk": "elements of K that a step loads",
    "warps": "warps of a block", "stages": "steps whose operands are loaded ahead",
    "blocks_per_core": "blocks that a core has room for", "waves": "blocks to those that all cores have room for",
    "tail": "share of the cores' time that is idle since blocks do not divide evenly",
    "shared_bytes": "shared memory of a block [byte]", "problem": "why it cannot run",
    "library_s": "expected time of the library's own choice [s]", "searched": "schedules that were priced",
    # measure, doctor
    "measured_low_s": "lower quartile of the runs [s]", "measured_high_s": "upper quartile of the runs [s]",
    "runs": "timed runs", "device": "where it ran", "ok": "whether nothing is wrong", "state": "ok, missing or wrong",
    "detail": "what there is",
    # tune
    "m": "rows of the result", "n": "columns of it", "k": "elements that each adds up",
    "method": "how variants are chosen, how weights are rounded", "ranges": "how scales are found",
    "weight": "the matrix", "bits_per_weight": "stored bits, scales included [bit]",
    "unchanged": "matrices that stay as they were", "cosine": "of both, as vectors",
    "sqnr_db": "signal to noise of rounding [dB]", "largest_error": "over the largest magnitude",
    "output_sqnr_db": "of what it computes on the calibration inputs [dB]",
    "activations": "format that matmuls take their inputs in",
    "variants": "ways to block it that there are", "measurements": "those that were measured",
    "remembered": "those of them that an earlier search had measured", "interrupted": "whether somebody stopped it",
    "fastest": "the fastest variant", "variant": "a way to block it",
    "seeds": "what other machines found best: time there [s] and rank here before it was measured here",
    "time_there_s": "time on that machine [s]", "rank_here": "rank by the model of this machine",
    "loops": "order of the loops over blocks, the outermost first",
    "packed": "whether blocks are copied into one piece first",
    "unroll": "elements of K that the innermost loop adds up at a time", "best_so_far_s": "best time until then [s]",
    # validate, calibrate
    "section": "what is judged together", "class": "operator and format, or model and phase",
    "mean": "mean error [%]; of draws, their mean",
    "median": "median error [%]", "p90": "90th percentile of the error [%]", "bias": "median error with its sign [%]",
    "inside": "measured inside the range [%]", "spread": "median of high over low", "sections": "worst rows by section",
    "failed": "rows not predicted, by reason", "unstable": "rows left out as not stable",
    "held_out_error": "mean error of operators held out of the fit, as a share",
    "points": "operators measured", "remarks": "what was measured on what",
    "peaks_flops_per_s": "best rates by format [FLOP/s]",
    # fleets
    "answers": "programs on chips, by batch or limits, that have a time and fit",
    "too_large": "answers that do not fit in the chip's memory: they have no rank",
    "change_time_s": "time with that change [s]", "folder": "where the results are",
    "formats_s": "time with the best change of formats alone [s]",
    "gain": "weighed time of an item that the changes save [s]", "could_save_s": "what the changes save, in sum [s]",
    "above_floor_s": "weighed time above the floors, in sum [s]", "item": "what a batch is made of",
    "kernels_s": "time with the best change of kernels alone [s]",
    "key": "hash of all that the answer depends on", "under": "limits under which the batch was chosen",
    "lost": "weighed time of an item above the floor [s]", "potential_s": "time with the changes together [s]",
    "program_path": "name or path of the program", "programs": "programs; in a fleet, how many",
    "run_s": "time with the best way to run alone [s]", "unmet": "limits that no batch meets",
    "program_weight": "weight of the program", "written": "when it was written [s since 1970]",
    # co-design
    "area_mm2": "area of all parts that have a published figure [mm2]",
    "best_row": "the best chip, or the nearest to the limits",
    "chips": "chips that were looked at", "cost_usd": "price of the dies and of main memory [USD]",
    "design": "figures of the chip", "energy_j": "energy of a weighed run of all programs [J]",
    "left_out": "parts without a published figure", "limits_s": "time that each program may take [s]",
    "meeting": "chips that meet every limit", "meets_all": "whether it meets every limit",
    "met": "whether a chip meets every limit",
    "misses": "limits that it misses: die, memory, and programs by name",
    "node": "technology node", "memory_kind": "kind of main memory", "objective": "what is to be least",
    "pace": "the worst time over its limit; without limits the weighed time [s]", "parts_mm2": "area by part [mm2]",
    "sensitivity": "% less time per 1 % improvement, by program and figure", "times_s": "time of each program [s]",
}  # fmt: skip

#: Objects whose keys are names, so that any may appear.
_MAPS = frozenset({
    "design", "times_s", "parts_mm2", "sensitivity",
    "versions", "validation", "limits",
    "sizes", "memory_bytes", "uncertainty", "ridge_by_kernel", "skipped", "batch_by_share", "elasticity", "what_if",
    "matrix_flops_per_s", "vector_flops_per_s",
    "peaks_flops_per_s", "counts", "failed", "options", "unknown", "matrix", "vector", "fallback", "sources", "idle",
    "parameters", "shape", "links", "efficiency", "loads_s", "copies_s",
    "critical_engines_s", "critical_layers_s", "critical_ops_s",
    "drawn",
})  # fmt: skip
#: Rates of whatever the items of a program are called.
_RATE = r"^[a-z]+s(_per_s)?$"
#: Keys of a chip's own file, which the format of chips describes.
_CHIP_FILE = frozenset({
    "form", "cores", "core_name", "clock", "tdp", "matrix", "vector", "memory", "links", "efficiency", "fallback",
    "grid", "clock_slack", "sources",
})  # fmt: skip


# --- schemas ----------------------------------------------------------------------------------------------------------


def schema_of(values: Iterable[Any], key: str = "") -> dict[str, Any]:
    """Return the JSON Schema that describes all values."""
    values = list(values)
    types = sorted({_type(value) for value in values})
    if "number" in types and "integer" in types:
        types.remove("integer")
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types} if types else {}
    objects = [value for value in values if isinstance(value, Mapping)]
    items = [item for value in values if isinstance(value, list) for item in value]
    if objects and key in _MAPS:
        schema["additionalProperties"] = schema_of(item for value in objects for item in value.values())
    elif objects:
        names = dict.fromkeys(name for value in objects for name in value)
        schema["properties"] = {name: _described(name, [v[name] for v in objects if name in v]) for name in names}
        schema["required"] = [name for name in names if all(name in value for value in objects)]
    if items:
        schema["items"] = schema_of(items, key)
    return schema


def _described(name: str, values: list[Any]) -> dict[str, Any]:
    return ({"description": KEYS[name]} if name in KEYS else {}) | schema_of(values, name)


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def faults(value: Any, schema: Mapping[str, Any], path: str = "$") -> Iterator[str]:
    """Say where a value is not as its schema has it."""
    allowed = schema.get("type", [])
    allowed = [allowed] if isinstance(allowed, str) else allowed
    kind = _type(value)
    if allowed and kind not in allowed and not (kind == "integer" and "number" in allowed):
        yield f"{path}: {kind}, not {' or '.join(allowed)}"
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{path}[{at}]")
    if isinstance(value, dict):
        yield from (f"{path}: {name} is missing" for name in schema.get("required", ()) if name not in value)
        known = schema.get("properties", {})
        for name, item in value.items():
            if "additionalProperties" in schema:
                yield from faults(item, schema["additionalProperties"], f"{path}.{name}")
            elif name in known:
                yield from faults(item, known[name], f"{path}.{name}")
            elif known and not re.fullmatch(_RATE, name):
                yield f"{path}: {name} is not in the schema"


# --- what commands print ----------------------------------------------------------------------------------------------


def calls() -> list[list[str]]:
    """Return the calls of all commands that print JSON, examples first."""
    examples = [
        line.partition(" ")[2]
        for name, line in EXAMPLES.items()
        if name not in ("plot", "predict", "calibrate", "measure", "tune", "report", "explore", "lower")
    ]
    return [shlex.split(line) for line in (*examples, *CASES)]


@contextlib.contextmanager
def folder_of_examples() -> Iterator[Path]:
    """Stay in a folder with the files that the examples read."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        for file, text in FILES.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        quick = {"beam": 2, "check": False, "without": ("formats", "cache", "kernels")}
        rl.optimize("gpt2", "h100-sxm", batch=1, seq=8, **quick).save(Path(name) / "plan.toml")  # type: ignore[arg-type]
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def printed(call: list[str], form: str = "--json") -> str:
    """Return what a call prints."""
    words = [word for word in call if word != "--format" and word != "table"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        main([*words, form])
    return out.getvalue()


def calibration() -> Calibration:
    """Return a calibration without measuring one."""
    return Calibration(rl.chip("h100-sxm"), [SimpleNamespace(op="relu", dtype="fp32")], {0: 0.1}, ("made up",))  # type: ignore[list-item]


def measurement() -> Measurement:
    """Return a measurement without measuring one."""
    verdict = rl.check("gpt2", "h100-sxm", "9 ms", phase="decode", batch=1, context=512)
    return Measurement(9e-3, 8.9e-3, 9.1e-3, 7, "cuda", verdict.estimate.graph, verdict.estimate, verdict)


def tuning() -> Tuning:
    """Return a tuning without measuring one."""
    times = {Variant("numba", 64, 256, 32, "mnk", unroll=4): 2e-3, Variant("numpy", 64, 256, 64, "nmk", True): 1e-3}
    return Tuning(Problem(96, 96, 96), "a-cpu", "evolution", 500, times, 1e-3, seeds=(("b-cpu", min(times), 3e-3, 7),))


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of every output by its name."""
    with folder_of_examples():
        records = [json.loads(printed(call)) for call in calls()]
    records += [calibration().record(), measurement().record(), tuning().record()]
    names = dict.fromkeys(record["schema"]["name"] for record in records)
    return {name: _schema([record for record in records if record["schema"]["name"] == name]) for name in names}


def _schema(records: list[dict[str, Any]]) -> dict[str, Any]:
    head = records[0]["schema"]
    title = f"roofline {head['name']}, version {head['version']}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | schema_of(records)


# --- the page ---------------------------------------------------------------------------------------------------------

_START, _END = "<!-- schemas: written by scripts/schemas.py -->\n", "<!-- end of schemas -->\n"


def stored() -> dict[str, dict[str, Any]]:
    """Return the schemas in ``docs/schemas`` by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def page(text: str) -> str:
    """Return the page with its tables anew, from the stored schemas."""
    before, _, rest = text.partition(_START)
    return before + _START + "".join(f"{line}\n" for line in _tables(stored())) + _END + rest.partition(_END)[2]


def _tables(found: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    yield from ("| schema | the whole | a row |", "|---|---|---|")
    for name, schema in found.items():
        whole = [key for key in schema["properties"] if key not in ("schema", "rows", *_CHIP_FILE)]
        row = schema["properties"]["rows"].get("items", {}).get("properties", {})
        yield f"| [`{name}`](schemas/{name}.json) | {_words(whole)} | {_words(row)} |"
    used = {key for schema in found.values() for part in (schema, schema["properties"]["rows"].get("items", {}))
            for key in part.get("properties", {})}  # fmt: skip
    yield from ("", "| key | what it is |", "|---|---|")
    yield from (f"| `{key}` | {meaning} |" for key, meaning in sorted(KEYS.items()) if key in used)


def _words(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def write() -> None:
    """Write the schemas and the tables of the page."""
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        text = json.dumps(schema, indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
