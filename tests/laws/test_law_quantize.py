"""Laws of quantising: contractions stay, weights shrink to the bit, nothing gains what no unit or byte gives."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory
from roofline.ir.dtypes import DTYPES
from roofline.passes.formats.scales import weight_format

LAW = settings(deadline=None, max_examples=examples(40), derandomize=True, database=None)
MODELS: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"phase": "decode", "layers": 2},
    "gpt2": {"phase": "prefill", "layers": 2},
    "mixtral-8x7b": {"phase": "decode", "layers": 1},
    "deepseek-v2-lite": {"phase": "decode", "layers": 2},
    "resnet18": {},
    "vit-b-16": {},
}
WORDS = ("int8", "int4", "fp8", "fp4", "int4-g32", "int4-g64", "int4-g128-sym", "int4-g32-z4", "int8-g128", "nf4",
         "nf4-dq", "mxfp8", "nvfp4", "q4_0", "q8_0", "int3-g64-z3")  # fmt: skip
CACHED = ("llama-3-8b", "gpt2", "mixtral-8x7b")


@cache
def load(name: str) -> rl.Graph:
    return rl.model(name, **MODELS[name])


def sizes_of(graph: rl.Graph) -> dict[str, int]:
    return {name: {"B": 3, "S": 17, "C": 130}[name] for name in graph.symbols}


def quantised(graph: rl.Graph, **options: Any) -> rl.Graph:
    """The quantised program; groups that do not divide some row of the model are not what is tested here."""
    try:
        return rl.passes.quantize(graph, **options)
    except rl.errors.UsageError as error:
        assume("nearest that fits" not in str(error))
        raise


@LAW
@given(name=st.sampled_from(sorted(MODELS)), word=st.sampled_from(WORDS), everything=st.booleans(),
       way=st.sampled_from(["fused", "separate"]))  # fmt: skip
def test_weights_shrink_and_contractions_stay(name: str, word: str, everything: bool, way: str) -> None:
    graph = load(name)
    sizes = sizes_of(graph)
    narrow = quantised(graph, weights=word, keep=() if everything else None, dequantize=way)
    assert memory(narrow, sizes).weights < memory(graph, sizes).weights
    before, after = rl.count(graph, **sizes), rl.count(narrow, **sizes)
    assert after.flops == before.flops
    assert after.vector_flops >= before.vector_flops
    assert narrow.parameters == graph.parameters
    if way == "fused":
        assert after.bytes < before.bytes
        assert after.launches == before.launches
    for tensor_name, tensor in graph.tensors.items():
        assert DTYPES[narrow.tensors[tensor_name].dtype].bits_per_element <= DTYPES[tensor.dtype].bits_per_element


@LAW
@given(name=st.sampled_from(CACHED), word=st.sampled_from(["int8", "fp8", "int4"]),
       scales=st.sampled_from(["dynamic", "static"]))  # fmt: skip
def test_a_narrow_cache_is_smaller_and_changes_nothing_else(name: str, word: str, scales: str) -> None:
    graph = load(name)
    sizes = sizes_of(graph)
    narrow = rl.passes.quantize(graph, cache=word, scales=scales)
    before, after = memory(graph, sizes).parts(), memory(narrow, sizes).parts()
    assert after["kv_cache"] < before["kv_cache"] * Fraction(2, 3)
    assert {k: v for k, v in after.items() if k != "kv_cache"} == {k: v for k, v in before.items() if k != "kv_cache"}
    assert rl.count(narrow, **sizes).flops == rl.count(graph, **sizes).flops
    assert rl.count(narrow, **sizes).bytes < rl.count(graph, **sizes).bytes


@LAW
@given(word=st.sampled_from(WORDS), blocks=st.integers(1, 40), rows=st.integers(1, 300))
def test_stored_bits_are_the_format_s(word: str, blocks: int, rows: int) -> None:
    k = 128 * blocks
    b = rl.ops.Builder("gemm", "bf16")
    graph = rl.passes.quantize(b.graph([b.op("linear", b.input("x", (1, k)), b.weight("w", (rows, k)))]), weights=word)
    bits = DTYPES[weight_format(word, k)].bits_per_element
    assert Fraction(memory(graph, {}).weights) * 8 == bits * rows * k


@LAW
@given(k=st.integers(1, 5000), group=st.integers(2, 600), tail=st.sampled_from(["sym", "z4", "z16"]))
def test_a_refused_group_names_one_that_fits(k: int, group: int, tail: str) -> None:
    try:
        weight_format(f"int4-g{group}-{tail}", k)
    except rl.errors.UsageError as error:
        assert k % group
        nearest = str(error).rpartition(" ")[2]
        assert weight_format(nearest, k) == nearest
    else:
        assert k % group == 0


def time(graph: rl.Graph, **sizes: int) -> float:
    return float(rl.estimate(graph, "h100-sxm", mode="graph", **sizes).time)


@settings(LAW, max_examples=examples(25))
@given(
    word=st.sampled_from(["int8", "int4-g128", "int4-g32", "fp8", "nf4"]), context=st.sampled_from([128, 2048, 8192])
)
def test_decode_of_one_sequence_gains_but_less_than_its_bytes(word: str, context: int) -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    narrow = rl.passes.quantize(graph, weights=word)
    at = {"B": 1, "C": context}
    before, after = time(graph, **at), time(narrow, **at)
    fewer = float(rl.count(narrow, **at).bytes / rl.count(graph, **at).bytes)
    assert fewer < after / before < 1
    assert time(rl.passes.quantize(graph, weights=word, dequantize="separate"), **at) > before


@settings(LAW, max_examples=examples(25))
@given(word=st.sampled_from(["int8", "int4-g128", "fp8", "nf4"]), batch=st.sampled_from([1, 4, 16]),
       way=st.sampled_from(["fused", "separate"]))  # fmt: skip
def test_prefill_gains_nothing_from_narrow_weights(word: str, batch: int, way: str) -> None:
    graph = rl.model("llama-3-8b", phase="prefill")
    at = {"B": batch, "S": 2048}
    assert time(rl.passes.quantize(graph, weights=word, dequantize=way), **at) >= time(graph, **at)


@settings(LAW, max_examples=examples(25))
@given(k=st.sampled_from([1024, 4096, 14336]), n=st.sampled_from([1024, 4096, 28672]), m=st.integers(1, 4096),
       word=st.sampled_from(["int8", "int4-g128", "fp8"]))  # fmt: skip
def test_no_product_beats_its_floor(k: int, n: int, m: int, word: str) -> None:
    b = rl.ops.Builder("gemm", "bf16")
    plain = b.graph([b.op("linear", b.input("x", (m, k)), b.weight("w", (n, k)))])
    for graph in (rl.passes.quantize(plain, weights=word), rl.passes.quantize(plain, activations="fp8")):
        est = rl.estimate(graph, "h100-sxm", mode="graph")
        assert est.time >= est.floor >= rl.count(graph).bytes / est.chip.bandwidth * (1 - 1e-12)


@pytest.mark.parametrize(("word", "scales"), [("int8", "dynamic"), ("fp8", "dynamic"), ("fp8", "static")])
def test_narrow_units_speed_prefill_by_no_more_than_their_peak(word: str, scales: str) -> None:
    graph, chip = rl.model("llama-3-8b", phase="prefill"), rl.chip("h100-sxm")
    gain = time(graph, B=1, S=4096) / time(rl.passes.quantize(graph, activations=word, scales=scales), B=1, S=4096)
    assert gain < chip.matmul_peak(word) / chip.matmul_peak("bf16")
    if word == "fp8":
        assert gain > 1.2


def test_a_bigger_batch_of_products_with_a_scale_a_row_is_no_faster() -> None:
    graph = rl.passes.quantize(rl.model("llama-3-8b", phase="decode", layers=2), activations="fp8", cache="fp8")
    times = rl.estimate(graph, "h100-sxm", mode="graph", B=range(1, 300), C=2048).time
    assert all(more >= less for less, more in pairwise(times))
