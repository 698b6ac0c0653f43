"""Traffic by hand: what crosses the boundary of a kernel, once, and nothing else."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.counting.counts import kernel_boundaries, kernels

B, C = rl.ops.symbol("B"), rl.ops.symbol("C")
#: Elements of the vectors below, and their bytes in fp32.
N = 1024
VECTOR = 4 * N


def test_a_kernel_reads_each_input_and_writes_its_output_once() -> None:
    b = rl.ops.Builder("g", "fp32")
    x = b.input("x", (N,))
    totals = rl.count(b.graph([b.op("mul", x, x)]))
    assert (totals.bytes, totals.vector_flops, totals.launches) == (2 * VECTOR, N, 1)  # x twice is read once


def test_five_unfused_steps_move_ten_vectors() -> None:
    b = rl.ops.Builder("g", "fp32")
    x = b.input("x", (N,))
    for _ in range(5):
        x = b.op("relu", x)
    assert rl.count(b.graph([x])).bytes == 10 * VECTOR


def test_a_small_operand_is_read_at_its_own_size() -> None:
    b = rl.ops.Builder("g", "fp32")
    graph = b.graph([b.op("bias_add", b.input("x", (64, N)), b.weight("bias", (N,)))])
    assert rl.count(graph).bytes == (64 + 1 + 64) * VECTOR


def test_formats_have_their_own_bytes() -> None:
    b = rl.ops.Builder("g", "bf16")
    y = b.op("linear", b.input("x", (8, 128)), b.weight("w", (256, 128), dtype="int4-g128"))
    # 2 bytes an activation, 4.25 bits a weight.
    assert rl.count(b.graph([y])).bytes == 2 * 8 * 128 + 256 * 128 * 4.25 / 8 + 2 * 8 * 256


def test_views_move_nothing_and_launch_nothing() -> None:
    b = rl.ops.Builder("g", "fp32")
    x = b.input("x", (4, N))
    y = b.op("view", b.op("slice", b.op("relu", x), shape=(2, N)), shape=(2 * N,))
    graph = b.graph([y])
    assert (rl.count(graph).bytes, rl.count(graph).launches) == (8 * VECTOR, 1)


def test_a_slice_is_read_at_its_own_size_and_two_slices_never_more_than_the_whole() -> None:
    b = rl.ops.Builder("g", "fp32")
    x = b.input("x", (4, N))
    quarter = b.op("slice", x, shape=(1, N))
    part = b.op("slice", x, shape=(3, N))
    b.op("relu", quarter, name="one")
    with b.kernel("both"):
        y = b.op("sum", b.op("exp", part, name="e"))
        z = b.op("tanh", x, name="all")
    by_name = {row.kernel.name: row for row in rl.count(b.graph([y, z])).rows}
    assert (by_name["one"].read, by_name["one"].write) == (VECTOR, VECTOR)
    assert by_name["both"].read == 4 * VECTOR  # 3 + 4 quarters touched, 4 there
    assert by_name["both"].write == 3 * 4 + 4 * VECTOR  # three sums and all of tanh; e stays inside


def test_a_broadcast_view_reads_its_base() -> None:
    b = rl.ops.Builder("g", "fp32")
    wide = b.op("expand", b.input("x", (1, N)), shape=(64, N))
    assert rl.count(b.graph([b.op("relu", wide)])).bytes == (1 + 64) * VECTOR


def test_a_latent_cache_read_as_keys_and_values_is_read_once() -> None:
    # DeepSeek's absorbed attention: keys are the whole latent cache, values a slice of the same rows.
    b = rl.ops.Builder("mla", "bf16")
    cache = b.cache("latent", (B, 1, C, 576))
    q = b.input("q", (B, 128, 1, 576))
    values = b.op("slice", cache, shape=(B, 1, C, 512))
    with b.kernel("sdpa"):
        y = b.op("attention_values", b.op("attention_softmax", b.op("attention_scores", q, cache)), values)
    row = rl.count(b.graph([y]), B=4, C=1000).rows[0]
    assert row.read == 2 * (4 * 128 * 576 + 4 * 1000 * 576)
    assert row.write == 2 * 4 * 128 * 512


def test_a_cache_update_moves_the_new_positions_twice_and_nothing_else() -> None:
    b = rl.ops.Builder("g", "bf16")
    cache, new = b.cache("k", (B, 8, C, 128)), b.input("new", (B, 8, 1, 128))
    totals = rl.count(b.graph([b.op("cache_update", cache, new)]), B=4, C=10**6)
    assert totals.bytes == 2 * (2 * 4 * 8 * 1 * 128)  # read the new, write them


def test_attention_in_one_kernel_never_writes_the_scores() -> None:
    def attention(fused: bool) -> rl.Graph:
        b = rl.ops.Builder("g", "bf16")
        q, k, v = (b.input(name, (2, 8, 1024, 64)) for name in "qkv")
        b._kernel = "sdpa" if fused else ""
        return b.graph([b.op("attention_values", b.op("attention_softmax", b.op("attention_scores", q, k)), v)])

    flash, naive = rl.count(attention(True)), rl.count(attention(False))
    assert flash.flops == naive.flops == 2 * (2 * 8 * 1024 * 1024 * 64) * 2
    assert flash.bytes == 4 * (2 * 2 * 8 * 1024 * 64)  # q, k, v in, y out
    assert naive.bytes == flash.bytes + 4 * (2 * 2 * 8 * 1024 * 1024)  # scores and weights, each out and in


def test_an_embedding_reads_rows_not_the_table() -> None:
    b = rl.ops.Builder("g", "bf16")
    y = b.op("embedding", b.weight("table", (128256, 4096)), b.input("ids", (B,), "int64"))
    assert rl.count(b.graph([y]), B=3).bytes == 3 * 8 + 2 * (2 * 3 * 4096)


def test_two_readers_in_one_kernel_read_what_the_greedier_one_needs() -> None:
    def moved(*order: str) -> int:
        b = rl.ops.Builder("g", "fp32")
        table, ids = b.weight("table", (100, N)), b.input("ids", (3,), "int64")
        with b.kernel("k"):
            made = [b.op("embedding", table, ids) if op == "embedding" else b.op("sum", table) for op in order]
        return int(rl.count(b.graph(made)).rows[0].read)

    assert moved("embedding", "sum") == moved("sum", "embedding") == 3 * 8 + 100 * VECTOR


def test_an_output_that_is_also_read_inside_its_kernel_is_still_written() -> None:
    b = rl.ops.Builder("g", "fp32")
    with b.kernel("k"):
        kept = b.op("relu", b.input("x", (N,)))
        y = b.op("exp", kept)
    assert rl.count(b.graph([y])).bytes == 2 * VECTOR
    assert rl.count(b.graph([kept, y])).bytes == 3 * VECTOR


def test_what_nobody_reads_is_written_all_the_same() -> None:
    b = rl.ops.Builder("g", "fp32")
    b.op("relu", b.input("x", (N,)))
    assert rl.count(b.graph([])).bytes == 2 * VECTOR


def test_equal_kernels_are_one_row_and_different_ones_are_not() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.input("x", (B, 64))
    for layer in range(3):
        x = b.op("linear", x, b.weight(f"w{layer}", (64, 64)), name=f"fc{layer}")
    x = b.op("linear", x, b.weight("w8", (64, 64), dtype="int8"), name="quantised")
    rows = kernels(b.graph([x]))
    assert [(row.count, row.names) for row in rows] == [(3, ("fc0", "fc1", "fc2")), (1, ("quantised",))]
    totals = rl.count(b.graph([x]), B=2)
    assert (totals.launches, totals.flops) == (4, 4 * 2 * 2 * 64 * 64)


def test_reading_one_tensor_twice_differs_from_reading_two() -> None:
    b = rl.ops.Builder("g", "fp32")
    x, y = b.input("x", (N,)), b.input("y", (N,))
    rows = kernels(b.graph([b.op("add", x, y, name="two"), b.op("add", x, x, name="one")]))
    assert [row.read for row in rows] == [2 * VECTOR, VECTOR]


def test_a_node_with_a_count_runs_that_often() -> None:
    b = rl.ops.Builder("g", "fp32")
    totals = rl.count(b.graph([b.op("exp", b.input("x", (N,)), count=7)]))
    assert (totals.launches, totals.vector_flops, totals.bytes) == (7, 7 * N, 14 * VECTOR)


@pytest.mark.parametrize(
    ("x", "w", "runs"),
    [
        ("bf16", "bf16", "bf16"),
        ("bf16", "int8", "bf16"),  # weight-only quantisation multiplies in the activations' format
        ("bf16", "int4-g128", "bf16"),
        ("fp16", "nf4", "fp16"),
        ("int8", "int8", "int8"),
        ("fp8", "fp8-block", "fp8"),
        ("fp32", "bf16", "fp32"),
        ("nvfp4", "nvfp4", "fp4"),
    ],
)
def test_a_contraction_runs_in_the_widest_of_its_operands(x: str, w: str, runs: str) -> None:
    b = rl.ops.Builder("g", "bf16")
    graph = b.graph([b.op("linear", b.input("x", (4, 128), dtype=x), b.weight("w", (4, 128), dtype=w))])
    assert list(rl.count(graph).rows[0].flops_by) == [runs]


def test_a_kernel_is_named_by_its_contraction() -> None:
    b = rl.ops.Builder("g", "bf16")
    with b.kernel("epilogue"):
        x = b.op("linear", b.op("relu", b.input("x", (4, 8))), b.weight("w", (8, 8)))
        y = b.op("gelu", x)
    row = kernels(b.graph([y]))[0]
    assert (row.main.op, row.kind, row.shapes) == ("linear", "matmul", ((4, 8), (8, 8)))
    assert row.vector == {"bf16": 5 * 32}


def test_storage_is_followed_through_views_and_in_place_updates() -> None:
    b = rl.ops.Builder("g", "bf16")
    cache = b.cache("k", (1, 1, 8, 4))
    new = b.op("cache_update", cache, b.input("n", (1, 1, 1, 4)))
    view = b.op("view", new, shape=(8, 4))
    scope = kernel_boundaries(b.graph([view]))
    assert (scope.base(view), scope.root(view)) == (new, cache)


def test_totals_and_intensity() -> None:
    b = rl.ops.Builder("g", "bf16")
    totals = rl.count(b.graph([b.op("linear", b.input("x", (B, 4096)), b.weight("w", (4096, 4096)))]), B=4096)
    assert totals.intensity == 2 * 4096**3 / (3 * 2 * 4096**2)
    assert totals.rows[0].bytes == totals.bytes


def test_a_missing_size_is_named() -> None:
    with pytest.raises(rl.errors.UnboundSize, match="needs a value for"):
        rl.count(rl.model("gpt2", layers=1), B=1)


# --- whole models: the traps ------------------------------------------------------------------------------------------


def test_decode_reads_the_cache_once_by_key_value_heads() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    small, large = (rl.count(graph, B=1, C=context).bytes for context in (1000, 2000))
    # One more position: 32 layers, keys and values, 8 heads (not 32) of 128, 2 bytes, read once.
    assert (large - small) / 1000 == 32 * 2 * 8 * 128 * 2


def test_decode_computes_by_query_heads() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    small, large = (rl.count(graph, B=1, C=context).flops for context in (1000, 2000))
    assert (large - small) / 1000 == 32 * 2 * (2 * 32 * 128)


def test_decode_streams_every_weight_but_the_embedding_table() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    matrices = sum(
        tensor.numel for tensor in graph.tensors.values() if tensor.kind == "weight" and tensor.name != "embed.weight"
    )
    assert graph.parameters - matrices == 128256 * 4096
    assert 2 * matrices < rl.count(graph, B=1, C=1).bytes < 2 * matrices * 1.01


def test_a_dense_model_computes_two_flops_a_weight_and_token() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    linear = sum(2 * t.numel for t in graph.tensors.values() if t.kind == "weight" and len(t.shape) == 2)
    linear -= 2 * 128256 * 4096  # the table is looked up, not multiplied
    assert rl.count(graph, B=1, C=1).flops == linear + 32 * 2 * 2 * 32 * 128
