"""Published figures against the library.

``golden/values.toml`` holds the figures with their sources; the table here says which call of the library
answers each. No figure is worked out here: the arithmetic between two calls is at most a difference, a
quotient or a sum over rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import roofline as rl
from roofline.analysis.training.footprint import footprint
from roofline.cost.algorithms import factor
from roofline.cost.pipelines import bubble, in_flight
from roofline.counting.memory import memory
from roofline.ir.dtypes import DType
from roofline.ir.sizes import distinct, symbol
from roofline.ir.units import MAC, parse
from roofline.ops.registry import get_op

VALUES = Path(__file__).parent / "golden" / "values.toml"
#: The collection that the values were copied from; beside the checkout, where there is one.
ORIGINAL = Path(__file__).parents[2] / "shared" / "facts" / "golden.yaml"

#: A bound of ours may exceed the source's by this much before it stops saying anything.
BOUND_SLACK = 1.05
GIB = parse("1 GiB", "B")
IDEAL = {"compute": 1, "memory": 1, "launch": 0, "low": 1, "high": 1}
B = symbol("B")

Inputs = SimpleNamespace
Answer = Callable[[Inputs], float]
#: The answer to each figure, by case and name.
ANSWERS: dict[tuple[str, str], Answer] = {}


def answers(case: str, table: dict[str, Answer]) -> None:
    for name, answer in table.items():
        assert (case, name) not in ANSWERS, f"{case}: {name} is answered twice"
        ANSWERS[case, name] = answer


# --- calls that several answers share -----------------------------------------------------------------------


def source_chip(
    bandwidth: float = 1e18,
    *,
    capacity: float | None = None,
    fp32_vector: float | None = None,
    **matrix: float,
) -> rl.Chip:
    """The source's own figures, reached in full."""
    more = {} if capacity is None else {"memory_capacity": capacity}
    vector = {} if fp32_vector is None else {"fp32": fp32_vector}
    return rl.Chip(name="source", matrix=matrix, vector=vector, memory_bandwidth=bandwidth, efficiency=IDEAL, **more)


def ideal(name: str) -> rl.Chip:
    """A shipped chip whose datasheet is reached in full."""
    return rl.chip(name).replace(efficiency=IDEAL)


def program(dtype: str, op: str, **sizes: Any) -> rl.Graph:
    return rl.workload([{"op": op, **sizes}], dtype=dtype)


def node(dtype: str, op: str, *shapes: tuple[Any, ...], **options: Any) -> rl.Graph:
    """One operator of the registry on inputs of these shapes."""
    b = rl.ops.Builder(op, dtype)
    return b.graph([b.op(op, *(b.input("x", shape) for shape in shapes), **options)])


def linear(dtype: str, k: int, n: int) -> rl.Graph:
    """A matmul of B rows; the result has the operands' format."""
    b = rl.ops.Builder("linear", dtype)
    return b.graph([b.op("linear", b.input("x", (B, k)), b.weight("w", (n, k)))], items=B)


def counted(graph: rl.Graph, **sizes: int) -> rl.Counts:
    return rl.count(graph, **sizes)


def estimated(graph: rl.Graph, chip: rl.Chip, **sizes: int) -> rl.Estimate:
    return rl.estimate(graph, chip, mode="graph", **sizes)


def intensity(graph: rl.Graph, **sizes: int) -> float:
    """Contraction FLOPs a byte."""
    counts = counted(graph, **sizes)
    return counts.flops / counts.bytes


def attained(graph: rl.Graph, chip: rl.Chip) -> float:
    """Operations a second at the floor."""
    est = estimated(graph, chip)
    return (est.flops + est.vector_flops) / est.floor


def compute_time(graph: rl.Graph, chip: rl.Chip, **sizes: int) -> float:
    est = estimated(graph, chip, **sizes)
    return sum(r.kernel.count * t.compute for r, t in zip(est.rows, est.times[0], strict=True))


def crossover(graph: rl.Graph, chip: rl.Chip) -> float:
    """The batch, not rounded, at which compute and memory time of one kernel meet: both are linear in B."""
    (one,), (two,) = (estimated(graph, chip, B=batch).times[0] for batch in (1, 2))
    return float(1 + (one.memory - one.compute) / (two.compute - one.compute - two.memory + one.memory))


def critical_batch(chip: rl.Chip, dtype: str, weights: str | None = None) -> float:
    """The crossover of a matmul so wide that its activations do not show."""
    return crossover(rl.passes.cast(linear(dtype, 2**32, 2**32), weights=weights), chip)


def stream(weights: int, cache_each: int = 0) -> rl.Graph:
    """A decode step reduced to what it reads: so many bytes of weights once, so many of cache a sequence."""
    b = rl.ops.Builder("stream", "int8")
    out = [b.op("sum", b.weight("w", (1, int(weights))))]
    if cache_each:
        out.append(b.op("sum", b.cache("kv", (B, int(cache_each)))))
    return b.graph(out, items=B, item="token")


def stored(elements: float, dtype: str) -> float:
    """Bytes of a weight."""
    b = rl.ops.Builder("stored", dtype)
    w = b.weight("w", (int(elements),))
    return memory(b.graph([b.op("relu", w)]), {}).weights


@cache
def decoder(name: str, phase: str = "decode", **overrides: Any) -> rl.Graph:
    return rl.model(name, phase=phase, **{"dtype": "bf16", **overrides})


def gpt(layers: int, hidden: int, **more: Any) -> rl.Graph:
    """The plain transformer of Kaplan's 12 L d^2, without biases unless asked."""
    plain = {"qkv_bias": False, "out_bias": False, "mlp_bias": False, **more}
    return decoder("gpt-3-175b", layers=layers, hidden=hidden, heads=hidden // 128, intermediate=4 * hidden, **plain)


def kv_bytes(graph: rl.Graph, batch: int = 1, context: int = 1) -> float:
    """By the memory of a decode step and by the cache itself alike."""
    found = memory(graph, {"B": batch, "C": context}).kv_cache
    assert rl.serving.kv_cache(graph, context, batch=batch).ideal == found
    return found


def matrices(graph: rl.Graph, *parts: str) -> int:
    """Parameters of the matrices whose names contain one of these words, or of all."""
    return sum(
        tensor.numel
        for name, tensor in graph.tensors.items()
        if tensor.kind == "weight" and len(tensor.shape) > 1 and (not parts or set(parts) & set(name.split(".")))
    )


def projection_flops(graph: rl.Graph, within: str = "") -> float:
    """FLOPs of one token, attention's scores and values aside."""
    rows = counted(graph, B=1, C=1).rows
    return sum(r.kernel.count * r.flops for r in rows if r.kernel.kind == "matmul" and r.kernel.name.startswith(within))


def weight_stream(graph: rl.Graph, kinds: tuple[str, ...] = ("matmul", "rowwise", "move"), within: str = "") -> float:
    """Bytes of a decode step that do not grow with the batch."""
    one, two = counted(graph, B=1, C=1).rows, counted(graph, B=2, C=1).rows
    return sum(
        a.kernel.count * (2 * a.bytes - b.bytes)
        for a, b in zip(one, two, strict=True)
        if a.kernel.kind in kinds and a.kernel.name.startswith(within)
    )


def decode_rate(graph: rl.Graph, chip: rl.Chip, context: int = 64) -> float:
    """Tokens a second of one sequence at the floor."""
    return 1 / estimated(graph, chip, B=1, C=context).floor


# --- Yuan et al. 2024, table 1: one layer of Llama-2-7B on an A6000 -----------------------------------------


def a6000(i: Inputs) -> rl.Chip:
    return source_chip(i.bw, fp16=i.peak)


def of_projection(k: str, n: str) -> Callable[[Inputs], rl.Graph]:
    def build(i: Inputs) -> rl.Graph:
        rows = i.s if i.stage == "prefill" else 1
        return program("fp16", "gemm", m=i.b * rows, k=getattr(i, k), n=getattr(i, n))

    return build


def of_attention(op: str) -> Callable[[Inputs], rl.Graph]:
    def build(i: Inputs) -> rl.Graph:
        q = i.s if i.stage == "prefill" else 1
        queries, keys = (i.b, i.n_heads, q, i.head_dim), (i.b, i.n_kv_heads, i.s, i.head_dim)
        scores = (i.b, i.n_heads, q, i.s)
        inputs = {
            "attention_scores": (queries, keys),
            "attention_values": (scores, keys),
            "softmax": (scores,),
        }
        return node("fp16", op, *inputs[op])

    return build


LLMVIEWER: dict[str, Callable[[Inputs], rl.Graph]] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), of_projection("h", "h")),
    **dict.fromkeys(("gate_proj", "up_proj"), of_projection("h", "ffn")),
    "down_proj": of_projection("ffn", "h"),
    "qk_matmul": of_attention("attention_scores"),
    "sv_matmul": of_attention("attention_values"),
    "softmax": of_attention("softmax"),
    "norm": lambda i: program("fp16", "layernorm", rows=i.b * i.s, cols=i.h),
}
LLMVIEWER_ROWS = {
    "prefill": [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "down_proj",
        "qk_matmul",
        "sv_matmul",
        "softmax",
        "norm",
    ],
    "decode": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "sv_matmul", "softmax"],
}
for _stage, _layer in [(stage, layer) for stage, layers in LLMVIEWER_ROWS.items() for layer in layers]:
    _build = LLMVIEWER[_layer]
    answers(
        f"llmviewer-llama2-7b-a6000-{_stage}-{_layer}",
        {
            "ops": lambda i, build=_build: counted(build(i)).flops + counted(build(i)).vector_flops,
            "memory_access": lambda i, build=_build: counted(build(i)).bytes,
            "arithmetic_intensity": lambda i, build=_build: counted(build(i)).intensity,
            "max_performance": lambda i, build=_build: attained(build(i), a6000(i)),
        },
    )


def residual_add(i: Inputs, operands: int) -> rl.Graph:
    """The source lets one of the two operands be at hand already."""
    rows = i.s if i.stage == "prefill" else 1
    return program("fp16", "elementwise", n=i.b * rows * i.h, inputs=operands)


for _stage in ("prefill", "decode"):
    answers(
        f"llmviewer-llama2-7b-a6000-{_stage}-add",
        {
            "ops": lambda i: counted(residual_add(i, 2)).vector_flops,
            "memory_access_as_source": lambda i: counted(residual_add(i, 1)).bytes,
            "memory_access_two_operands": lambda i: counted(residual_add(i, 2)).bytes,
            "arithmetic_intensity_as_source": lambda i: counted(residual_add(i, 1)).intensity,
            "arithmetic_intensity_two_operands": lambda i: counted(residual_add(i, 2)).intensity,
            "max_performance_as_source": lambda i: attained(residual_add(i, 1), a6000(i)),
        },
    )

answers("llmviewer-a6000-ridge", {"ridge": lambda i: a6000(i).ridge("fp16")})


def layer_rows(i: Inputs, phase: str, batch: int, length: int) -> dict[str, Any]:
    size = {"C" if phase == "decode" else "S": length}
    rows = rl.count(decoder("llama-2-7b", phase, dtype="fp16", layers=1), B=batch, **size).rows
    return {name: row for row in rows for name in row.kernel.names}


def activation_elements(i: Inputs) -> float:
    graph = decoder("llama-2-7b", "prefill", layers=1)
    (name,) = (n.outputs[0] for n in graph.nodes if n.op == "silu")
    return graph.bind(B=i.b, S=i.s).tensors[name].numel


answers(
    "llmviewer-code-known-defects",
    {
        "lm_head_ops": lambda i: layer_rows(i, "decode", i.b, i.s)["head"].flops,
        "mlp_act_elements": activation_elements,
        "flash_output_bytes_prefill": lambda i: layer_rows(i, "prefill", i.b, i.s)["layers.0.attn.sdpa"].write,
    },
)

# --- Austin et al. 2025, How to Scale Your Model: rooflines -------------------------------------------------


def tera_flop() -> rl.Graph:
    return program("bf16", "gemm", m=5000, n=10_000, k=10_000)


answers(
    "sb-roofline-time-1e12",
    {
        "t_h100": lambda i: compute_time(tera_flop(), source_chip(bf16=i.h100)),
        "t_v6e": lambda i: compute_time(tera_flop(), source_chip(bf16=i.v6e)),
    },
)
answers(
    "sb-ridge-tpu-v5e-bf16",
    {
        "ridge_text_bw": lambda i: source_chip(i.bw_text, bf16=i.peak).ridge("bf16"),
        "ridge_table_bw": lambda i: source_chip(i.bw_table, bf16=i.peak).ridge("bf16"),
    },
)
answers("sb-dot-product-intensity", {"ai": lambda i: counted(program("bf16", "gemm", m=1, n=1, k=i.N)).intensity})
answers(
    "sb-q1-int8-matmul",
    {
        "ridge": lambda i: source_chip(i.bw, int8=i.peak).ridge("int8"),
        "critical_batch": lambda i: critical_batch(source_chip(i.bw, int8=i.peak), "int8"),
    },
)


def printed_sparse(i: Inputs) -> rl.Chip:
    """A datasheet with both figures: the sparse one must not enter."""
    peak = {"flops": i.sparse / 2, "sparse": i.sparse, "source": "datasheet"}
    return rl.Chip(name="sparse", matrix={"bf16": peak}, memory_bandwidth=i.bw, efficiency=IDEAL)


answers(
    "sb-q5-h100-critical-batch",
    {
        "B_crit_source_rounding": lambda i: critical_batch(source_chip(i.bw, bf16=i.used), "bf16"),
        "B_crit_dense_datasheet": lambda i: critical_batch(printed_sparse(i), "bf16"),
    },
)
answers(
    "sb-tpu-q1-200b-weight-load",
    {"t": lambda i: estimated(stream(stored(i.params, "bf16")), source_chip(i.bw).scale(bandwidth=i.chips), B=1).floor},
)
answers(
    "sb-v5e-int8-matmul-crossover",
    {
        "B_crit_hbm": lambda i: crossover(linear("int8", i.D, i.F), source_chip(i.bw, int8=i.peak)),
        "B_crit_vmem": lambda i: crossover(
            linear("int8", i.D, i.F), source_chip(i.bw, int8=i.peak).scale(bandwidth=i.vmem_ratio)
        ),
        "t_hbm_at_B1": lambda i: estimated(linear("int8", i.D, i.F), source_chip(i.bw, int8=i.peak), B=1).floor,
    },
)
answers(
    "sb-tpu-q6-offloaded-matvec",
    {
        "t_flops": lambda i: compute_time(
            rl.passes.cast(linear("bf16", i.n, i.n), weights="int8"), source_chip(i.hbm, bf16=i.peak), B=i.b
        )
    },
)


def self_attention(queries: int, keys: int, group: int) -> rl.Graph:
    sizes = {"heads": 16, "kv_heads": 16 // group, "q_len": queries, "kv_len": keys, "head_dim": 128}
    return program("bf16", "attention", batch=1, **sizes)


answers(
    "sb-self-attention-intensity",
    {
        "prefill_gqa": lambda i: intensity(self_attention(i.T, i.T, i.G)),
        "prefill_mha": lambda i: intensity(self_attention(i.T, i.T, 1)),
        "decode_gqa": lambda i: intensity(self_attention(1, i.S, i.G)),
        "decode_mha": lambda i: intensity(self_attention(1, i.S, 1)),
    },
)
answers(
    "sb-gpu-table-ridges",
    {
        "a100_80": lambda i: source_chip(i.a100bw, bf16=i.a100).ridge("bf16"),
        "h200": lambda i: source_chip(i.h200bw, bf16=i.h200).ridge("bf16"),
    },
)


def b200_matmul(i: Inputs, batch: int) -> rl.Estimate:
    return estimated(linear("bf16", i.D, i.F), source_chip(i.bw, bf16=i.peak), B=batch)


answers(
    "sb-gpu-b200-matmul-times",
    {
        "bytes_b64": lambda i: b200_matmul(i, 64).bytes,
        "t_b64": lambda i: b200_matmul(i, 64).floor,
        "t_b512": lambda i: b200_matmul(i, 512).floor,
    },
)
answers("sb-full-hbm-step-time", {"t": lambda i: estimated(stream(i.hbm), source_chip(i.bw), B=1).floor})

# --- the same book: inference -------------------------------------------------------------------------------


def popquiz(i: Inputs, batch: int) -> float:
    """Weights as one matmul of 30e9 parameters where that is compute-bound, as a stream where it is not."""
    chips = source_chip(i.bw, bf16=i.peak).scale(bandwidth=i.chips, compute=i.chips)
    if batch < critical_batch(chips, "bf16", "int8"):
        return estimated(stream(i.params, i.kv_tok * i.ctx), chips, B=batch).floor
    matmul = rl.passes.cast(linear("bf16", 150_000, 200_000), weights="int8")
    cache_only = estimated(stream(1, i.kv_tok * i.ctx), chips, B=batch)
    return cache_only.floor + estimated(matmul, chips, B=batch).floor


answers("sb-inference-popquiz-30b", {"step_b4": lambda i: popquiz(i, 4), "step_b256": lambda i: popquiz(i, 256)})


def llama_13b(i: Inputs, phase: str = "decode", **more: Any) -> rl.Graph:
    return decoder("llama-2-13b", phase, layers=i.L, hidden=i.D, intermediate=i.F, heads=i.N, vocab=i.V, **more)


def residual_bytes(i: Inputs) -> float:
    rows = rl.count(llama_13b(i, "prefill"), B=1, S=i.S).rows
    (row,) = (row for row in rows if "layers.0.attn.out" in row.kernel.names)
    return row.write


answers(
    "sb-llama2-13b-memory",
    {
        "ffn_params": lambda i: matrices(llama_13b(i), "mlp"),
        "vocab_params": lambda i: matrices(llama_13b(i), "embed", "head"),
        "attn_params": lambda i: matrices(llama_13b(i), "attn"),
        "total": lambda i: matrices(llama_13b(i)),
        "kv_8192_bf16": lambda i: kv_bytes(llama_13b(i), 1, i.S),
        "activation_8192": residual_bytes,
    },
)


def step(i: Inputs, batch: int) -> rl.Estimate:
    return estimated(stream(i.params, i.kv), source_chip(i.bw), B=batch)


for _kind in ("mha", "gqa"):
    for _batch in (1, 8, 16, 32, 64, 240):
        answers(
            f"sb-llama2-13b-v5e8-step-table-{_kind}",
            {
                f"step_b{_batch}": lambda i, batch=_batch: step(i, batch).floor,
                f"tokens_per_s_b{_batch}": lambda i, batch=_batch: batch / step(i, batch).floor,
            },
        )


def model_18b(i: Inputs, **more: Any) -> rl.Graph:
    sizes = {
        "layers": i.L,
        "hidden": i.D,
        "intermediate": i.F,
        "heads": i.N,
        "kv_heads": i.K,
        "head_dim": i.H,
    }
    return decoder("llama-3-8b", vocab=i.V, tied=True, **sizes, **more)


answers(
    "sb-inference-q1-18b",
    {
        "params": lambda i: matrices(model_18b(i)),
        "kv_per_token_int8": lambda i: kv_bytes(model_18b(i, cache="int8")),
    },
)


def llama_70b(**more: Any) -> rl.Graph:
    return decoder("llama-3-70b", **more)


answers(
    "sb-llama3-70b-params",
    {
        "ffn": lambda i: matrices(llama_70b(), "mlp"),
        "vocab": lambda i: matrices(llama_70b(), "embed", "head"),
        "attn": lambda i: matrices(llama_70b(), "attn"),
        "total": lambda i: matrices(llama_70b()),
    },
)
answers(
    "sb-llama3-70b-kv-int8",
    {
        "per_token": lambda i: kv_bytes(llama_70b(cache="int8")),
        "per_sequence_32k": lambda i: kv_bytes(llama_70b(cache="int8"), 1, i.S),
        "b240": lambda i: kv_bytes(llama_70b(cache="int8"), i.b, i.S),
    },
)


def decode_70b(i: Inputs, chips: int) -> rl.Estimate:
    return estimated(stream(i.P, i.kv_tok * i.S), source_chip(i.bw).scale(bandwidth=chips), B=i.b)


answers(
    "sb-llama3-70b-decode-v5e8",
    {
        "total_bytes": lambda i: decode_70b(i, 8).bytes,
        "step_4x2": lambda i: decode_70b(i, 8).floor,
        "step_4x4": lambda i: decode_70b(i, 16).floor,
        "tokens_per_s": lambda i: i.b / decode_70b(i, 8).floor,
    },
)


def v5e(i: Inputs, chips: int) -> rl.Chip:
    return source_chip(8.1e11, capacity=i.hbm).scale(capacity=chips)


def caches(i: Inputs, dtype: str, chips: int) -> float:
    """Sequences that fit beside the weights: the largest batch."""
    each = stored(i.kv_bf16 * i.S / stored(1, "bf16"), dtype)
    return rl.best_batch(stream(stored(i.P, dtype), each), v5e(i, chips), mode="graph", reserve=0).largest


answers(
    "sb-llama3-70b-min-topology",
    {
        "int4_param_bytes": lambda i: stored(i.P, "int4"),
        "bf16_chips": lambda i: stored(i.P, "bf16") / v5e(i, 1).capacity,
        "int8_chips": lambda i: stored(i.P, "int8") / v5e(i, 1).capacity,
        "int4_chips": lambda i: stored(i.P, "int4") / v5e(i, 1).capacity,
        "bf16_left": lambda i: v5e(i, 16).capacity - stored(i.P, "bf16"),
        "int8_left": lambda i: v5e(i, 8).capacity - stored(i.P, "int8"),
        "bf16_caches": lambda i: caches(i, "bf16", 16),
        "int8_caches": lambda i: caches(i, "int8", 8),
        "int4_caches": lambda i: caches(i, "int4", 4),
    },
)
answers(
    "sb-4x8-decode-three-way",
    {
        "t_math": lambda i: compute_time(
            linear("bf16", i.D, i.F), source_chip(i.bw, bf16=i.peak).scale(compute=i.Y), B=i.B
        )
    },
)


def prefill_70b(i: Inputs) -> float:
    derated = source_chip(8.1e11, bf16=i.peak * i.mfu)
    chips = derated.scale(compute=i.chips, bandwidth=i.chips)
    return estimated(linear("bf16", 200_000, 350_000), chips, B=i.T).floor


answers("sb-prefill-70b-8192", {"t": prefill_70b})

# --- Chen 2022, Transformer Inference Arithmetic ------------------------------------------------------------


def a100_kipply(i: Inputs) -> rl.Chip:
    return source_chip(i.bw, fp16=i.peak)


answers(
    "kipply-a100-208",
    {
        "ridge": lambda i: a100_kipply(i).ridge("fp16"),
        "ridge_1555": lambda i: a100_kipply(i).replace(memory_bandwidth="1555 GB/s").ridge("fp16"),
        "ridge_80GB": lambda i: a100_kipply(i).replace(memory_bandwidth="2.039 TB/s").ridge("fp16"),
        "ridge_90pct_bw": lambda i: a100_kipply(i).scale(bandwidth=0.9).ridge("fp16"),
    },
)


def forward_floor(i: Inputs, chips: int) -> float:
    weights = weight_stream(gpt(i.L, i.d), kinds=("matmul",), within="layers.")
    return estimated(stream(weights), a100_kipply(i).scale(bandwidth=chips), B=1).floor


answers("kipply-52b-forward-floor", {"t": lambda i: forward_floor(i, 1), "t_4gpu": lambda i: forward_floor(i, 4)})


def kipply_room(i: Inputs, gpus: int) -> float:
    """Tokens of cache beside the weights."""
    chips = source_chip(1.5e12, capacity=i.gpu).scale(capacity=gpus)
    return (chips.capacity - stored(i.P, "fp16")) / kv_bytes(gpt(i.L, i.d))


def kipply_batch(i: Inputs) -> int:
    chips = source_chip(1.5e12, capacity=i.gpu).scale(capacity=3)
    program = stream(stored(i.P, "fp16"), kv_bytes(gpt(i.L, i.d), 1, 2048))
    return rl.best_batch(program, chips, mode="graph", reserve=0).largest


answers(
    "kipply-kv-capacity",
    {
        "kv_per_token": lambda i: kv_bytes(gpt(i.L, i.d)),
        "weights": lambda i: stored(i.P, "fp16"),
        "tokens_3gpu": lambda i: kipply_room(i, 3),
        "tokens_4gpu": lambda i: kipply_room(i, 4),
        "batch_2048_3gpu": kipply_batch,
    },
)
answers("kipply-flops-per-token-52b", {"flops": lambda i: projection_flops(gpt(i.L, i.d), "layers.")})
answers(
    "kipply-exercise-52b-4gpu",
    {
        "compute": lambda i: compute_time(
            linear("fp16", 200_000, 260_000), source_chip(fp16=i.peak).scale(compute=i.n), B=i.B
        )
    },
)

# --- training sources, as far as inference answers them -----------------------------------------------------

answers(
    "eleuther-bytes-per-param",
    {
        "weights_int8": lambda i: stored(i.P, "int8"),
        "weights_fp16": lambda i: stored(i.P, "fp16"),
        "weights_fp32": lambda i: stored(i.P, "fp32"),
    },
)
answers(
    "eleuther-compute-6pd",
    {"forward": lambda i: counted(linear("fp16", 100_000, 200_000), B=int(i.D)).flops},
)


def megatron_params(i: Inputs) -> int:
    """The formula has no final norm."""
    graph = gpt(i.l, i.h, vocab=i.V, positions=i.s, qkv_bias=True, out_bias=True, mlp_bias=True)
    final = sum(t.numel for name, t in graph.tensors.items() if t.kind == "weight" and name.startswith("norm."))
    return graph.parameters - final


for _size in ("1.7b", "3.6b", "7.5b", "18.4b", "76.1b", "145.6b", "310.1b", "529.6b"):
    answers(f"megatron2021-table1-{_size}", {"params": megatron_params})

# --- training, and programs on many devices -----------------------------------------------------------------


def one_weight(i: Inputs) -> rl.Graph:
    return linear("fp16", 100_000, int(i.P) // 100_000)


def states(i: Inputs, kind: str) -> float:
    """Bytes of the optimizer's states beside fp16 weights, the fp32 copy among them."""
    return footprint(one_weight(i), kind, "mixed-fp16").dense.optimizer


answers(
    "eleuther-bytes-per-param",
    {
        "adamw_states": lambda i: states(i, "adamw"),
        "adam8bit_states": lambda i: states(i, "adam8bit"),
        "sgd_momentum_states": lambda i: states(i, "momentum"),
        "grads_fp16": lambda i: footprint(one_weight(i), "adamw", "fp16").dense.gradients,
        "grads_fp32": lambda i: footprint(one_weight(i), "adamw", "mixed-fp16").dense.gradients,
        "train_mixed_adamw_fp16grad": lambda i: (
            stored(i.P, "fp16") + states(i, "adamw") + footprint(one_weight(i), "adamw", "fp16").dense.gradients
        ),
        "train_mixed_adamw_fp32grad": lambda i: (
            stored(i.P, "fp16") + states(i, "adamw") + footprint(one_weight(i), "adamw", "mixed-fp16").dense.gradients
        ),
    },
)


def trained_flops(i: Inputs) -> float:
    """Forward and backward of a layer inside a network, whose input wants a gradient too."""
    layer = linear("fp16", 100_000, int(i.P) // 100_000)
    return counted(rl.passes.backward(layer, wrt=["x"]), B=int(i.D)).flops


answers(
    "eleuther-compute-6pd",
    {
        "C": trained_flops,
        "backward": lambda i: (
            trained_flops(i) - counted(linear("fp16", 100_000, int(i.P) // 100_000), B=int(i.D)).flops
        ),
    },
)


@cache
def megatron(hidden: int, heads: int, layers: int, vocab: int = 51200, tp: int = 1, sp: bool = False) -> rl.Graph:
    """A GPT as Megatron-LM trains it: dropout, GELU, attention written out, fp16."""
    graph = rl.model("megatron-22b", phase="train", hidden=hidden, heads=heads, layers=layers, vocab=vocab)
    return rl.passes.shard(graph, tp=tp, sp=sp) if tp > 1 else graph


def kept(i: Inputs, tp: int = 1, sp: bool = False, recompute: str = "none") -> float:
    """Bytes that a layer keeps for its backward."""
    both = rl.passes.backward(megatron(i.h, i.a, 2, tp=tp, sp=sp), recompute=recompute)
    return rl.passes.saved(both, B=i.b, S=i.s)["layers.1"]


def scores_over_rest(i: Inputs) -> float:
    """What selective recomputation saves, in units of ``s b h`` bytes."""
    return (kept(i) - kept(i, recompute="selective")) / (i.s * i.b * i.h)


for _size in ("22b", "530b", "1t"):
    answers(
        f"korthikanti-activations-{_size}",
        {
            "per_layer_no_parallel": kept,
            "per_layer_tp": lambda i: kept(i, i.t),
            "per_layer_tp_sp": lambda i: kept(i, i.t, True),
            "per_layer_tp_selective": lambda i: kept(i, i.t, False, "selective"),
            "per_layer_tp_sp_selective": lambda i: kept(i, i.t, True, "selective"),
            "per_layer_full_recompute": lambda i: kept(i, i.t, False, "full"),
            # The first stage has L / p layers and holds p micro-batches.
            "first_stage_total_tp_sp_selective": lambda i: (
                kept(i, i.t, True, "selective") * i.L / i.p * in_flight(0, i.p, i.B // i.b)
            ),
            "score_term": scores_over_rest,
            "selective_saves": lambda i: 1 - kept(i, recompute="selective") / kept(i),
        },
    )
answers(
    "eleuther-activation-formulas",
    {
        "none": lambda i: i.L * kept(i, i.t),
        "selective": lambda i: i.L * kept(i, i.t, False, "selective"),
        "full": lambda i: i.L * kept(i, i.t, False, "full"),
        "none_t1": lambda i: i.L * kept(i),
    },
)


def ratios(i: Inputs, hidden: int, heads: int) -> Inputs:
    return Inputs(h=hidden, a=heads, s=i.s, b=1)


def again_over_forward(i: Inputs) -> float:
    """Products that selective recomputation runs again over the layers' forward, attention's own left out."""
    whole = counted(megatron(i.h, i.a, 1), B=1, S=i.s).flops - counted(megatron(i.h, i.a, 1, 1024), B=1, S=i.s).flops
    layer = counted(megatron(i.h, i.a, 2), B=1, S=i.s).flops - counted(megatron(i.h, i.a, 1), B=1, S=i.s).flops
    assert whole > 0
    more = [
        counted(rl.passes.backward(megatron(i.h, i.a, 1), recompute=how), B=1, S=i.s).flops
        for how in ("selective", "none")
    ]
    return (more[0] - more[1]) / (layer - (more[0] - more[1]))


answers(
    "korthikanti-gpt3-ratios",
    {
        "gpt3_score_term": lambda i: scores_over_rest(ratios(i, i.h3, i.a3)),
        "mtnlg_score_term": lambda i: scores_over_rest(ratios(i, i.h5, i.a5)),
        "gpt3_memory_saved": lambda i: (
            1 - kept(ratios(i, i.h3, i.a3), recompute="selective") / kept(ratios(i, i.h3, i.a3))
        ),
        "mtnlg_memory_saved": lambda i: (
            1 - kept(ratios(i, i.h5, i.a5), recompute="selective") / kept(ratios(i, i.h5, i.a5))
        ),
        "gpt3_flop_overhead": lambda i: again_over_forward(ratios(i, i.h3, i.a3)),
        "mtnlg_flop_overhead": lambda i: again_over_forward(ratios(i, i.h5, i.a5)),
    },
)


def model_flops(i: Inputs) -> float:
    """Three times the products of the forward."""
    return 3 * counted(megatron(i.h, i.a, i.L, i.v), B=i.B, S=i.s).flops


for _size in ("22b", "175b", "530b", "1t"):
    answers(
        f"korthikanti-mfu-{_size}",
        {
            "model_flops": model_flops,
            "mfu": lambda i: model_flops(i) / rl.chip("a100-80gb-sxm").matmul_peak("fp16") / (i.t_new * i.gpus),
        },
    )


def recomputed_flops(i: Inputs) -> float:
    """Forward, backward and one more forward of all layers; heads do not change the products."""
    both = rl.passes.backward(megatron(i.h, i.h // 128, i.l, i.V), recompute="full")
    return counted(both, B=i.B, S=i.s).flops


for _size in ("1.7b", "3.6b", "7.5b", "18.4b", "76.1b", "145.6b", "310.1b", "529.6b"):
    answers(
        f"megatron2021-table1-{_size}",
        {
            "flops_per_iteration": recomputed_flops,
            "percent_of_peak": lambda i: i.achieved / rl.chip("a100-80gb-sxm").matmul_peak("fp16"),
            "iteration_time_implied": lambda i: recomputed_flops(i) / (i.achieved * i.n),
        },
    )


def reduced(graph: rl.Graph, **sizes: int) -> tuple[int, list[float]]:
    """How often devices add up, and the elements of each."""
    found = [row for row in rl.count(graph, **sizes).rows if row.kernel.main.op == "all_reduce"]
    return sum(row.kernel.count for row in found), [row.sizes["e"] for row in found for _ in range(row.kernel.count)]


def of_a_layer(i: Inputs, heads: int, training: bool) -> list[float]:
    """Elements of the all-reduces that one more layer brings."""
    graphs = [megatron(i.h, heads, layers, tp=i.t) for layers in (1, 2)]
    if training:
        graphs = [rl.passes.backward(graph) for graph in graphs]
    fewer, more = (reduced(graph, B=i.b, S=i.s)[1] for graph in graphs)
    for elements in fewer:
        more.remove(elements)
    return more


def ring(i: Inputs, op: str, alpha: float = 0.0) -> rl.analysis.Collective:
    link = {"name": "link", "bandwidth": i.W, "latency": alpha, "source": "the case"}
    chip = rl.Chip(name="linked", matrix={"bf16": 1e12}, memory_bandwidth=1e12, links=[link])
    size = getattr(i, "S", 1 << 30)
    return rl.analysis.collective(chip, op, size, int(getattr(i, "n", 0) or i.t), algorithm="ring", ideal=True)


def wire_factor(op: str) -> Answer:
    return lambda i: float(factor(op, i.n))


answers(
    "megatron2021-bubble-and-comm",
    {
        "bubble": lambda i: bubble(i.p, i.m),
        "bubble_interleaved": lambda i: bubble(i.p, i.m, i.v),
        "tp_elements_per_layer": lambda i: sum(of_a_layer(i, 96, True)) * factor("all_reduce", i.t),
    },
)
for _n in ("n8", "n64"):
    answers(
        f"collective-factors-{_n}",
        {
            "allreduce_factor": wire_factor("all_reduce"),
            "allgather_factor": wire_factor("all_gather"),
            "reducescatter_factor": wire_factor("reduce_scatter"),
            "alltoall_factor": wire_factor("alltoall"),
            "broadcast_factor": wire_factor("broadcast"),
            "allreduce_time": lambda i: ring(i, "all_reduce").seconds,
            "allreduce_ring_steps": lambda i: ring(i, "all_reduce").steps,
            "allreduce_time_with_latency": lambda i: ring(i, "all_reduce", i.alpha).seconds,
        },
    )


@cache
def llama_decode(layers: int, devices: int) -> rl.Graph:
    return rl.passes.shard(rl.model("llama-3-70b", phase="decode", layers=layers), tp=devices)


def decode_reduces(i: Inputs) -> list[float]:
    """Elements of the all-reduces of one more layer of a decode step."""
    fewer, more = (reduced(llama_decode(layers, i.t), B=i.b, C=8)[1] for layers in (1, 2))
    for elements in fewer:
        more.remove(elements)
    return more


answers(
    "tp-allreduce-per-layer",
    {
        "fwd_allreduces_per_layer": lambda i: len(decode_reduces(i)),
        "train_allreduces_per_layer": lambda i: len(of_a_layer(Inputs(**{**vars(i), "s": 8}), 64, True)),
        "bytes_per_allreduce": lambda i: decode_reduces(i)[0] * i.bytes_el,
        "wire_bytes_per_gpu_per_token": lambda i: i.L * sum(decode_reduces(i)) * i.bytes_el * factor("all_reduce", i.t),
        "latency_floor_per_token": lambda i: i.L * len(decode_reduces(i)) * i.lat,
        "bandwidth_time_per_token": lambda i: (
            i.L * sum(ring(Inputs(W=i.W, S=e * i.bytes_el, n=i.t), "all_reduce").seconds for e in decode_reduces(i))
        ),
    },
)


def palm_flops(i: Inputs, attention: bool = True) -> float:
    """Three forwards a token: products with N weights, and scores and values against T positions."""
    products = 3 * counted(linear("bf16", 10_000, int(i.N) // 10_000), B=1).flops
    heads = node("bf16", "attention_scores", (1, i.H, i.T, i.Q), (1, i.H, i.T, i.Q))
    return products + attention * 3 * 2 * i.L * counted(heads).flops / i.T


def palm_mfu(i: Inputs, attention: bool) -> float:
    return i.tps * palm_flops(i, attention) / (i.chips * rl.chip("tpu-v4").matmul_peak("bf16"))


answers(
    "palm-540b-mfu",
    {
        "flops_per_token": palm_flops,
        "mfu": lambda i: palm_mfu(i, True),
        "mfu_no_attention": lambda i: palm_mfu(i, False),
    },
)


def per_trained_token(weights: float) -> float:
    return counted(rl.passes.backward(linear("bf16", 10_000, int(weights) // 10_000), wrt=["x"]), B=1).flops


answers(
    "deepseek-insights-gflops-per-token",
    {
        "dsv3_6N": lambda i: per_trained_token(i.act),
        "llama405_6N": lambda i: per_trained_token(i.d405),
        "qwen72_6N": lambda i: per_trained_token(i.qwen),
    },
)
answers(
    "torch-compile-breakeven", {"iterations": lambda i: rl.diagnosis.break_even(i.compile_s, i.eager, i.compiled).steps}
)

# --- classic rooflines --------------------------------------------------------------------------------------

answers(
    "tpuv1-ridge",
    {
        "tpu_ridge_mac": lambda i: source_chip(i.bw, int8=MAC * i.macs).ridge("int8") / MAC,
        "tpu_ridge_ops": lambda i: source_chip(i.bw, int8=i.tops).ridge("int8"),
        "haswell_ridge_mac": lambda i: source_chip(i.hswbw, fp32_vector=i.hsw).ridge("fp32") / MAC,
        "k80_ridge_mac": lambda i: source_chip(i.k80bw, fp32_vector=i.k80).ridge("fp32") / MAC,
    },
)
answers(
    "nvidia-gemm-intensities",
    {
        "m8192_n128_k8192": lambda i: intensity(program("fp16", "gemm", m=8192, n=128, k=8192)),
        "m8192_n8192_k8192": lambda i: intensity(program("fp16", "gemm", m=8192, n=8192, k=8192)),
        "gemv": lambda i: intensity(program("fp16", "gemm", m=8192, n=1, k=8192)),
    },
)


def a100_fp32(i: Inputs) -> rl.Chip:
    return source_chip(i.bw, fp32_vector=i.peak)


def operations_to_balance(graph: rl.Graph, chip: rl.Chip) -> float:
    """Operations an element that would take as long as its traffic, where now there is one."""
    (time,) = estimated(graph, chip).times[0]
    return float(time.memory / time.compute)


answers(
    "horace-breakeven",
    {
        "numbers_per_s": lambda i: 2**27 / estimated(program("fp32", "sum", rows=1, cols=2**27), a100_fp32(i)).floor,
        "ops_per_element_read_write": lambda i: operations_to_balance(
            program("fp32", "mul_scalar", n=2**27), a100_fp32(i)
        ),
        "ops_per_element_read_only": lambda i: operations_to_balance(
            program("fp32", "sum", rows=1, cols=2**27), a100_fp32(i)
        ),
    },
)

# --- accesses an element before and after fusion ------------------------------------------------------------


def accesses(graph: rl.Graph, elements: float) -> float:
    return counted(graph).bytes / stored(elements, "fp32")


def binary_chain(i: Inputs) -> rl.Graph:
    return program("fp32", "elementwise", n=int(i.n), inputs=2, count=i.k)


answers(
    "fusion-binary-chain",
    {
        "unfused": lambda i: accesses(binary_chain(i), i.n),
        "fused": lambda i: accesses(rl.passes.fuse(binary_chain(i)), i.n),
    },
)
N = 2**27


def residual_relu() -> rl.Graph:
    b = rl.ops.Builder("residual", "fp32")
    return b.graph([b.op("relu", b.op("add", b.input("x", (N,)), b.input("residual", (N,))))])


def gemm_with_residual(fused: bool) -> rl.Graph:
    b = rl.ops.Builder("epilogue", "fp32")
    with b.kernel("gemm"):
        y = b.op("linear", b.input("x", (2**14, 64)), b.weight("w", (2**13, 64)))
        if fused:
            y = b.op("relu", b.op("add", y, b.input("residual", (2**14, 2**13))))
    return b.graph([y])


answers(
    "fusion-residual-relu",
    {
        "unfused": lambda i: accesses(residual_relu(), N),
        "fused": lambda i: accesses(rl.passes.fuse(residual_relu()), N),
        "in_gemm_epilogue": lambda i: accesses(gemm_with_residual(True), N) - accesses(gemm_with_residual(False), N),
    },
)


def softmax_in_passes(online: bool) -> rl.Graph:
    """Maximum, sum of exponentials (in the same sweep when online), then the normalising sweep."""
    b = rl.ops.Builder("softmax", "fp32")
    x = b.input("x", (1, N))

    def exponentials(largest: str) -> str:
        return b.op("exp", b.op("sub", x, b.op("view", largest, shape=(1, 1))))

    with b.kernel("maximum"):
        largest = b.op("argmax", x)
        total = b.op("sum", exponentials(largest)) if online else ""
    if not online:
        with b.kernel("sum"):
            total = b.op("sum", exponentials(largest))
    with b.kernel("normalise"):
        return b.graph([b.op("div", exponentials(largest), b.op("view", total, shape=(1, 1)))])


answers(
    "softmax-accesses",
    {
        "safe_softmax": lambda i: accesses(softmax_in_passes(False), N),
        "online_softmax": lambda i: accesses(softmax_in_passes(True), N),
        "row_in_registers": lambda i: accesses(program("fp32", "softmax", rows=1, cols=N), N),
        "speedup_bound": lambda i: counted(softmax_in_passes(False)).bytes / counted(softmax_in_passes(True)).bytes,
    },
)


def shared_producer(i: Inputs, recompute: bool) -> float:
    b = rl.ops.Builder("recompute", "fp32")
    x = b.input("x", (int(i.n),))
    made = "" if recompute else b.op("elementwise", x, flops=i.f)
    out = []
    for consumer in range(i.consumers):
        with b.kernel(f"consumer{consumer}"):
            y = b.op("elementwise", x, flops=i.f) if recompute else made
            out.append(b.op("relu", y))
    return estimated(b.graph(out), a100_fp32(i)).floor


answers(
    "fusion-hurts-recompute",
    {
        "t_materialise": lambda i: shared_producer(i, False),
        "t_recompute_in_each": lambda i: shared_producer(i, True),
    },
)

# --- model sizes --------------------------------------------------------------------------------------------


def macs(name: str) -> float:
    return counted(rl.model(name), B=1).flops / MAC


for _case, _name in (("resnet50", "resnet50"), ("vgg16", "vgg16"), ("mobilenetv2", "mobilenet-v2")):
    answers(
        f"{_case}-macs",
        {
            "macs": lambda i, name=_name: macs(name),
            "params": lambda i, name=_name: rl.model(name).parameters,
        },
    )


def fully_connected(biases: bool) -> int:
    graph = rl.model("vgg16")
    weights = (name for n in graph.nodes if n.op == "linear" for name in n.inputs[1 : 3 if biases else 2])
    return sum(graph.tensors[name].numel for name in weights)


answers("resnet50-macs", {"flops": lambda i: counted(rl.model("resnet50"), B=1).flops})
answers(
    "vgg16-macs",
    {
        "fc_params": lambda i: fully_connected(True),
        "fc_share": lambda i: fully_connected(False) / rl.model("vgg16").parameters,
    },
)

for _case, _name in (
    ("llama2-7b", "llama-2-7b"),
    ("llama2-13b", "llama-2-13b"),
    ("llama3-8b", "llama-3-8b"),
    ("llama3-70b", "llama-3-70b"),
    ("llama3.1-405b", "llama-3.1-405b"),
):
    answers(
        _case,
        {
            "params": lambda i, name=_name: decoder(name).parameters,
            "nominal": lambda i, name=_name: decoder(name).parameters,
            "decode_flops_per_token_no_attn": lambda i, name=_name: projection_flops(decoder(name)),
            "weights_bf16_streamed_per_token": lambda i, name=_name: weight_stream(decoder(name)),
        },
    )
for _name in ("qwen2.5-7b", "qwen2.5-72b"):
    answers(_name, {"params": lambda i, name=_name: decoder(name).parameters})
answers(
    "gpt2-params",
    {
        "params": lambda i: decoder("gpt2").parameters,
        "non_embedding_12Ld2": lambda i: matrices(decoder("gpt2"), "layers"),
    },
)
answers("gpt3-175b", {"params": lambda i: decoder("gpt-3-175b").parameters})
answers(
    "mixtral-8x7b",
    {
        "total": lambda i: decoder("mixtral-8x7b").parameters,
        "active": lambda i: decoder("mixtral-8x7b").info.active_parameters,
        "total_nominal": lambda i: decoder("mixtral-8x7b").parameters,
        "active_nominal": lambda i: decoder("mixtral-8x7b").info.active_parameters,
    },
)


def experts_read(i: Inputs, tokens: int) -> float:
    """By the operator and by the size function alike."""
    shapes = ((tokens * i.k, 1), (i.E, 1, 1))
    touched = get_op("expert_linear").work(shapes, {"top_k": i.k}).reads[1]
    assert touched == pytest.approx(distinct(i.E, i.k, tokens))
    return touched


for _tokens in (1, 4, 16):
    answers("moe-expected-experts", {f"b{_tokens}": lambda i, tokens=_tokens: experts_read(i, tokens)})

# --- KV cache -----------------------------------------------------------------------------------------------

KV = {
    "kv-gpt3-175b": "gpt-3-175b",
    "kv-opt-13b": "opt-13b",
    "kv-llama2-7b": "llama-2-7b",
    "kv-llama2-13b": "llama-2-13b",
    "kv-llama2-70b": "llama-2-70b",
    "kv-llama3-8b": "llama-3-8b",
    "kv-llama3-70b": "llama-3-70b",
    "kv-llama3.1-405b": "llama-3.1-405b",
    "kv-mixtral-8x7b": "mixtral-8x7b",
    "kv-qwen2.5-7b": "qwen2.5-7b",
    "kv-qwen2.5-72b": "qwen2.5-72b",
    "kv-qwen3-235b-a22b": "qwen3-235b-a22b",
}
for _case, _name in KV.items():
    answers(
        _case,
        {
            "bytes_per_token": lambda i, name=_name: kv_bytes(decoder(name)),
            "bytes_per_token_int8": lambda i, name=_name: kv_bytes(decoder(name, cache="int8")),
        },
    )


def falcon(i: Inputs, **more: Any) -> rl.Graph:
    """Not shipped: the cache of a Llama with one key-value head."""
    return decoder("llama-2-7b", layers=i.L, hidden=71 * 64, heads=71, kv_heads=i.K, head_dim=i.H, **more)


answers(
    "kv-falcon-7b-mqa",
    {
        "bytes_per_token": lambda i: kv_bytes(falcon(i)),
        "bytes_per_token_int8": lambda i: kv_bytes(falcon(i, cache="int8")),
    },
)


def over_latent(name: str) -> float:
    return kv_bytes(decoder(name)) / kv_bytes(decoder("deepseek-v3"))


def uncompressed_v3(i: Inputs) -> float:
    """Keys and values of all heads, had DeepSeek-V3 no latent."""
    plain = {"layers": i.L, "heads": i.N, "kv_heads": i.N, "hidden": 7168}
    widths = (i.nope + i.rope, i.vd)
    return sum(
        rl.serving.kv_cache(decoder("llama-2-7b", head_dim=width, **plain)).bytes_per_token / 2 for width in widths
    )


answers(
    "kv-deepseek-v3-mla",
    {
        "mha_equivalent": uncompressed_v3,
        "compression": lambda i: uncompressed_v3(i) / kv_bytes(decoder("deepseek-v3")),
        "bytes_per_token": lambda i: kv_bytes(decoder("deepseek-v3")),
        "multiplier_qwen72": lambda i: over_latent("qwen2.5-72b"),
        "multiplier_llama405": lambda i: over_latent("llama-3.1-405b"),
    },
)
answers("kv-deepseek-v2-mla", {"bytes_per_token": lambda i: kv_bytes(decoder("deepseek-v2"))})
answers("kv-opt13b-request", {"bytes": lambda i: kv_bytes(decoder("opt-13b"), 1, i.S)})


def with_kv_heads(i: Inputs, kv_heads: int) -> float:
    return kv_bytes(decoder("llama-2-70b", layers=i.L, heads=i.N, head_dim=i.H, kv_heads=kv_heads))


answers(
    "kv-vs-attention-arch",
    {
        "mha": lambda i: with_kv_heads(i, i.N),
        "gqa8": lambda i: with_kv_heads(i, 8),
        "mqa": lambda i: with_kv_heads(i, 1),
        "mha_over_gqa": lambda i: with_kv_heads(i, i.N) / with_kv_heads(i, 8),
    },
)

# --- number formats -----------------------------------------------------------------------------------------


def bits(name: str) -> float:
    return float(rl.ops.dtype(name).bits_per_element)


def private_bits(width: int, group: int, overhead: int) -> float:
    """A format that does not ship."""
    return float(DType("private", Fraction(width), None, "fp32", group, overhead).bits_per_element)


for _name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
    answers("gguf-block-bits", {_name: lambda i, name=_name: bits(name)})


def gguf(dtype: str, head: str | None = None) -> float:
    graph = rl.model("llama-2-7b", dtype=dtype)
    if head is not None:
        graph = graph.with_tensors([replace(graph.tensors["head.weight"], dtype=head)])
    return memory(graph, {"B": 1, "S": 1}).weights / GIB


answers(
    "gguf-llama7b-sizes",
    {
        "f16": lambda i: gguf("f16"),
        "q8_0": lambda i: gguf("q8_0"),
        "q4_0_with_q6k_head": lambda i: gguf("q4_0", "q6_k"),
    },
)
answers(
    "groupwise-int4-bits",
    {
        "scale_only_fp16": lambda i: bits("int4-g128-sym"),
        "scale_fp16_zero_int4": lambda i: bits("int4-g128-z4"),
        "scale_and_zero_fp16": lambda i: bits("int4-g128"),
        "g32_scale_fp16": lambda i: bits("q4_0"),
        "g32_scale_zero_16bit_gpt_fast": lambda i: bits("int4-g32"),
        "int8_per_channel_k4096": lambda i: private_bits(8, 4096, 16),
        "int3_g128": lambda i: private_bits(3, i.g, 16 + 4),
    },
)
answers(
    "qlora-nf4-bits",
    {
        "nf4_block64_fp32": lambda i: bits("nf4"),
        "overhead_double_quant": lambda i: bits("nf4-dq") - float(rl.ops.dtype("nf4-dq").bits),
        "nf4_double_quant": lambda i: bits("nf4-dq"),
        "saving_65b": lambda i: stored(65e9, "nf4") - stored(65e9, "nf4-dq"),
    },
)
answers(
    "microscaling-bits",
    {
        "mxfp4": lambda i: bits("mxfp4"),
        "mxfp8": lambda i: bits("mxfp8"),
        "nvfp4": lambda i: bits("nvfp4"),
    },
)


def v5e_peaks(i: Inputs) -> rl.Chip:
    return source_chip(i.bw, bf16=i.peak16, int8=i.peak8)


answers(
    "critical-batch-under-quantization",
    {
        "w16a16": lambda i: critical_batch(v5e_peaks(i), "bf16"),
        "w8a16": lambda i: critical_batch(v5e_peaks(i), "bf16", "int8"),
        "w4a16": lambda i: critical_batch(v5e_peaks(i), "bf16", "int4"),
        "w8a8": lambda i: critical_batch(v5e_peaks(i), "int8"),
    },
)

# --- matmul and convolution ---------------------------------------------------------------------------------


def cube(i: Inputs, size: int) -> rl.tiling.Traffic:
    return rl.tiling.matmul_traffic(i.M, i.N, i.K, (size, size, size))


#: Not answered: the source's lower bound adds M N, which short sums go below (:func:`rl.tiling.matmul_lower_bound`).
answers(
    "matmul-io-bounds",
    {
        "compulsory_elements": lambda i: counted(node("int8", "matmul", (i.M, i.K), (i.K, i.N))).bytes,
        "tiled_b_elements": lambda i: float(cube(i, i.b).bytes),
        "naive_elements": lambda i: float(cube(i, 1).bytes),
        "b_fitting_3_tiles": lambda i: max(size for size in range(1, 1000) if cube(i, size).held <= i.S),
        "max_flops_per_element": lambda i: 2 * 2**60 / float(rl.tiling.matmul_lower_bound(2**20, 2**20, 2**20, i.S)),
    },
)


def tile(rows: int, columns: int) -> float:
    """FLOPs a byte that blocks of a large matmul read."""
    read = rl.tiling.matmul_traffic(4096, 4096, 4096, (rows, columns, 64), widths=2).read
    return counted(program("fp16", "gemm", m=4096, n=4096, k=4096)).flops / float(read["a"] + read["b"])


answers(
    "tile-reuse-intensity",
    {
        "t128_fp16": lambda i: tile(128, 128),
        "t256_fp16": lambda i: tile(256, 256),
        "t256x128_fp16": lambda i: tile(256, 128),
    },
)


def resnet_conv(i: Inputs) -> rl.Graph:
    sizes = {"n": i.n, "c_in": i.c, "h": i.hh, "w": i.hh, "c_out": i.k, "r": i.r, "s": i.r, "padding": 1}
    return program("fp16", "conv2d", **sizes)


def columns(i: Inputs) -> tuple[rl.tiling.Nest, rl.tiling.Nest]:
    return rl.tiling.im2col(i.n, i.c, (i.hh, i.hh), i.k, (i.r, i.r), padding=1, widths=2)


def expansion(i: Inputs) -> float:
    copied = rl.tiling.traffic(columns(i)[0], {})
    return float(copied.write["columns"] / copied.read["a"])


answers(
    "conv-im2col-dims",
    {
        "flops": lambda i: counted(resnet_conv(i)).flops,
        "ai_implicit": lambda i: intensity(resnet_conv(i)),
        "im2col_expansion": expansion,
        "ai_explicit_im2col": lambda i: (
            counted(resnet_conv(i)).flops / float(sum(map(rl.tiling.compulsory, columns(i))))
        ),
    },
)


def large_map(out: int, inner: int, kernel: int, groups: int) -> float:
    sizes = {"n": 1, "c_in": inner, "h": 2**13, "w": 2**13, "c_out": out, "r": kernel, "s": kernel}
    return intensity(program("fp16", "conv2d", padding=kernel // 2, groups=groups, **sizes))


answers(
    "depthwise-conv-intensity",
    {
        "ai_large_map": lambda i: large_map(64, 64, i.r, 64),
        "pointwise_c64": lambda i: large_map(64, 64, 1, 1),
    },
)

# --- bounds beside measurements -----------------------------------------------------------------------------

for _name in (
    "gpt3_1.3b_2k",
    "gpt3_1.3b_8k",
    "gpt3_2.7b_2k",
    "gpt3_2.7b_8k",
    "flash1_2.7b_8k",
    "no_flash_1.3b_8k",
):
    answers("flash2-a100-e2e", {_name: lambda i: rl.chip("a100-80gb-sxm").matmul_peak("bf16")})
for _name in ("no_flash_2.7b_8k", "no_flash_1.3b_2k", "fwd_kernel_peak"):
    answers("flash2-a100-e2e", {_name: lambda i: rl.chip("a100-80gb-sxm").matmul_peak("fp16")})
answers(
    "flash3-h100",
    {
        "fp16_fwd": lambda i: rl.chip("h100-sxm").matmul_peak("fp16"),
        "fp8_fwd": lambda i: rl.chip("h100-sxm").matmul_peak("fp8"),
        "flash2_on_h100": lambda i: rl.chip("h100-sxm").matmul_peak("fp16"),
        "bf16_fwd_neurips_version": lambda i: rl.chip("h100-sxm").matmul_peak("bf16"),
    },
)
answers("llama3-405b-training-mfu", {"8k_gpus_8k_ctx": lambda i: rl.chip("h100-sxm").matmul_peak("bf16")})
for _name in ("neox", "neox_flash", "megatron_ds_low", "megatron_ds_high"):
    answers("eleuther-a100-throughput", {_name: lambda i: rl.chip("a100-40gb-sxm").matmul_peak("bf16")})

#: Intensities in multiply-adds a weight byte: the batch of an int8 matmul (Jouppi et al. 2017, table 1).
TPUV1 = {"MLP0": 200, "MLP1": 168, "LSTM0": 64, "LSTM1": 96, "CNN0": 2888, "CNN1": 1750}
for _name, _rows in TPUV1.items():
    answers(
        "tpuv1-workloads",
        {
            _name: lambda i, rows=_rows: attained(
                linear("int8", 2**32, 2**32).bind(B=rows), source_chip(i.bw, int8=i.tops)
            )
        },
    )


def llama_70b_rate(weights: str, gpus: int) -> float:
    chips = ideal("a100-80gb-sxm").scale(bandwidth=gpus, compute=gpus)
    return decode_rate(decoder("llama-2-70b", weights=weights), chips)


for _name, _weights, _gpus in (
    ("int8_1gpu", "int8", 1),
    ("int4_1gpu", "int4-g32", 1),
    ("bf16_2gpu", "bf16", 2),
    ("bf16_4gpu", "bf16", 4),
    ("bf16_8gpu", "bf16", 8),
    ("int8_8gpu", "int8", 8),
    ("int4_8gpu", "int4-g32", 8),
):
    answers("gptfast-llama2-70b-a100", {_name: lambda i, w=_weights, n=_gpus: llama_70b_rate(w, n)})


def mixtral_rate(weights: str, gpus: int) -> float:
    chips = ideal("a100-80gb-sxm").scale(bandwidth=gpus, compute=gpus)
    return decode_rate(decoder("mixtral-8x7b", weights=weights), chips)


for _name, _weights, _gpus in (
    ("bf16_2gpu", "bf16", 2),
    ("bf16_4gpu", "bf16", 4),
    ("bf16_8gpu", "bf16", 8),
    ("int8_1gpu", "int8", 1),
    ("int8_8gpu", "int8", 8),
):
    answers("gptfast-mixtral", {_name: lambda i, w=_weights, n=_gpus: mixtral_rate(w, n)})


def llamacpp(dtype: str, chip: str | float) -> float:
    """Llama-2-7B of one sequence on a shipped chip, or on a bandwidth where none ships."""
    target = ideal(chip) if isinstance(chip, str) else source_chip(chip, fp16=1e15)
    return decode_rate(decoder("llama-2-7b", dtype="fp16", weights=dtype), target)


APPLE = {
    "m1-max-32": "m1-max",
    "m1-ultra-64": "m1-ultra",
    "m2-pro-19": None,
    "m2-max-38": "m2-max",
    "m3-max-40": None,
    "m4-10": None,
    "m4-max-40": "m4-max",
}
for _case, _chip in APPLE.items():
    for _name, _weights in (("f16_tg128", "fp16"), ("q8_0_tg128", "q8_0"), ("q4_0_tg128", "q4_0")):
        answers(
            f"llamacpp-apple-{_case}",
            {_name: lambda i, chip=_chip, weights=_weights: llamacpp(weights, chip or i.bw)},
        )
for _name, _chip in {
    "rtx5090": "rtx-5090",
    "rtx4090": "rtx-4090",
    "h100_80gb": "h100-sxm",
    "a100_80gb": "a100-80gb-sxm",
    "rtx3090": "rtx-3090",
    "rtx5080": 960e9,
    "dgx_spark_gb10": 273e9,
}.items():
    answers("llamacpp-nvidia-q4_0", {_name: lambda i, chip=_chip: llamacpp("q4_0", chip)})
answers(
    "llamacpp-strix-halo",
    {
        "vulkan_tg128": lambda i: llamacpp("q4_0", i.bw),
        "vulkan_tg128_vs_measured_bw": lambda i: llamacpp("q4_0", i.bw_meas),
        "cpu_tg128": lambda i: llamacpp("q4_0", i.bw),
    },
)


def deepseek_prefill(i: Inputs) -> float:
    """An H800 computes as an H100 does."""
    node_chip = ideal("h100-sxm").scale(compute=i.gpus, bandwidth=i.gpus)
    est = estimated(rl.model("deepseek-v3", phase="prefill"), node_chip, B=64, S=4096)
    return 64 * 4096 / est.floor


answers("deepseek-v3-serving-h800", {"prefill_computed_tok_s_node": deepseek_prefill})

# --- the tests ----------------------------------------------------------------------------------------------


def load() -> dict[str, dict[str, Any]]:
    table = tomllib.loads(VALUES.read_text(encoding="utf-8"))
    return {
        case["id"]: {**case, "values": {value["name"]: value for value in case["values"]}} for case in table["case"]
    }


GOLDEN = load() if VALUES.exists() else {}


def keys(*kinds: str) -> list[Any]:
    found = [(c, n) for c, case in GOLDEN.items() for n, value in case["values"].items() if value["kind"] in kinds]
    return [pytest.param(case, name, id=f"{case}:{name}") for case, name in found]


def answer(case: str, name: str) -> float:
    return float(ANSWERS[case, name](SimpleNamespace(**GOLDEN[case]["inputs"])))


@pytest.mark.parametrize(("case", "name"), keys("exact", "approx"))
def test_value(case: str, name: str) -> None:
    wanted = GOLDEN[case]["values"][name]
    assert answer(case, name) == pytest.approx(wanted["value"], rel=wanted["rtol"], abs=0)


@pytest.mark.parametrize(("case", "name"), keys("source_error"))
def test_corrected_figure(case: str, name: str) -> None:
    wanted = GOLDEN[case]["values"][name]
    ours = answer(case, name)
    assert ours == pytest.approx(wanted["value"], rel=wanted["rtol"], abs=0)
    assert ours != pytest.approx(wanted["published"], rel=0.02), "the source's slip is reproduced"


@pytest.mark.parametrize(("case", "name"), keys("measured_bracket"))
def test_bound_beside_measurement(case: str, name: str) -> None:
    wanted = GOLDEN[case]["values"][name]
    assert wanted["better"] == "higher"
    bound = answer(case, name)
    assert wanted["value"] <= bound <= wanted["roofline_bound"] * BOUND_SLACK


def test_enough_values_are_answered() -> None:
    answered = [value for case in GOLDEN.values() for value in case["values"].values()]
    fixed = [value for value in answered if value["kind"] in ("exact", "approx", "source_error")]
    assert len(fixed) >= 150


def test_table_and_values_match() -> None:
    assert {(case, name) for case, entry in GOLDEN.items() for name in entry["values"]} == set(ANSWERS)
    assert all(entry["cite"] for entry in GOLDEN.values())


def test_values_are_the_collection_s() -> None:
    yaml = pytest.importorskip("yaml")
    if not ORIGINAL.is_file():
        pytest.skip("the collection is not beside the checkout")
    original = {case["id"]: case for case in yaml.safe_load(ORIGINAL.read_text(encoding="utf-8"))["cases"]}
    for name, entry in GOLDEN.items():
        source = original[name]
        assert entry["inputs"] == source["inputs"]
        assert {key: entry.get(key) for key in ("cite", "url", "where")} == {
            key: source["source"].get(key) for key in ("cite", "url", "where")
        }
        expected = {(value["name"], value["kind"]): value for value in source["expected"]}
        for value in entry["values"].values():
            original_value = expected[value["name"], value["kind"]]
            assert value == {key: original_value[key] for key in value}, f"{name}: {value['name']}"
