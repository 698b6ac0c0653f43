"""JAX programs: by hand, and beside what XLA counts of the program that it compiled."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl
from roofline.frontends import emit
from roofline.frontends.jax import RULES
from roofline.frontends.jax.sizes import format_of, size_of
from roofline.ops.registry import node_work

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp
    from jax import export, lax

jax.config.update("jax_platforms", "cpu")
#: What the first releases that are supported have not yet.
recent = pytest.mark.skipif(not hasattr(jax.nn, "dot_product_attention"), reason="needs a newer jax")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Shape = jax.ShapeDtypeStruct


def f32(*shape: Any) -> Any:
    return Shape(shape, "float32")


def i32(*shape: int) -> Any:
    return Shape(shape, "int32")


def xla(fn: Callable[..., Any], *args: Any) -> tuple[float, float]:
    """FLOPs and transcendentals of the compiled program, by XLA's own count."""
    lowered = jax.jit(fn).lower(*args)
    compiled = lowered.compile()
    # Old releases hand whole softmaxes and products to a library, and count nothing of them.
    found = (lowered if "__onednn" in compiled.as_text() else compiled).cost_analysis()
    found = found[0] if isinstance(found, list) else found
    return found.get("flops", 0.0), found.get("transcendentals", 0.0)


def counts(fn: Callable[..., Any], *args: Any, **options: Any) -> rl.Counts:
    return rl.count(rl.from_jax(fn, *args, **options))


def ops(graph: rl.Graph) -> list[str]:
    return [node.op for node in graph.nodes]


# --- contractions: 2 a multiply-add, whatever the order of axes -------------------------------------------------------

CONTRACTIONS = {
    "matrix times matrix": (lambda a, b: a @ b, (f32(5, 7), f32(7, 3)), 2 * 5 * 7 * 3),
    "right transposed": (lambda a, b: a @ b.T, (f32(5, 7), f32(3, 7)), 2 * 5 * 7 * 3),
    "matrix times vector": (lambda a, b: a @ b, (f32(5, 7), f32(7)), 2 * 5 * 7),
    "vector times matrix": (lambda a, b: a @ b, (f32(7), f32(7, 3)), 2 * 7 * 3),
    "batched": (lambda a, b: a @ b, (f32(4, 5, 7), f32(4, 7, 3)), 2 * 4 * 5 * 7 * 3),
    "mapped": (jax.vmap(lambda a, b: a @ b, (0, None)), (f32(4, 5, 7), f32(7, 3)), 2 * 4 * 5 * 7 * 3),
    "two axes contracted": (
        lambda a, b: jnp.einsum("abcd,cbe->ade", a, b), (f32(2, 3, 4, 5), f32(4, 3, 7)), 2 * (2 * 5) * (3 * 4) * 7
    ),
    "batch in the middle": (
        lambda a, b: jnp.einsum("abcd,cbe->cdae", a, b), (f32(2, 3, 4, 5), f32(4, 3, 7)), 2 * 4 * (2 * 5) * 3 * 7
    ),
    "integers": (
        lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
        (Shape((5, 7), "int8"), Shape((7, 3), "int8")), 2 * 5 * 7 * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_contraction_counts_two_per_multiply_add(name: str) -> None:
    fn, args, flops = CONTRACTIONS[name]
    assert counts(fn, *args).flops == flops
    # The compiler widens small integers first, and counts each.
    widened = sum(arg.size for arg in args) if name == "integers" else 0
    assert xla(fn, *args)[0] == flops + widened


def test_a_layer_is_a_linear_node_that_reads_its_operands_once() -> None:
    graph = rl.from_jax(lambda w, x: x @ w, f32(64, 128), f32(4, 8, 64), weights="w")
    assert ops(graph) == ["matmul"]
    assert graph.parameters == 64 * 128
    assert rl.count(graph).bytes == 4 * (64 * 128 + 4 * 8 * 64 + 4 * 8 * 128)


def test_products_of_experts_count_rows_and_not_rows_times_experts() -> None:
    args = (f32(64, 32), f32(4, 32, 48), i32(4))
    assert counts(lax.ragged_dot, *args).flops == 2 * 64 * 32 * 48


def conv(*args: Any, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda x, w: lax.conv_general_dilated(x, w, *args, **options)


IMAGE, KERNEL = f32(2, 6, 12, 10), f32(8, 6, 3, 3)
#: Without padding XLA's count is the same: what is compared is (output points) x (window) x 2.
CONVOLUTIONS = {
    "plain": (conv((1, 1), "VALID"), IMAGE, KERNEL, 2 * 2 * 8 * (10 * 8) * 6 * 9, "conv2d"),
    "strided": (conv((2, 2), "VALID"), IMAGE, KERNEL, 2 * 2 * 8 * (5 * 4) * 6 * 9, "conv2d"),
    "dilated": (conv((1, 1), "VALID", rhs_dilation=(2, 1)), IMAGE, KERNEL, 2 * 2 * 8 * (8 * 8) * 6 * 9, "conv2d"),
    "grouped": (
        conv((1, 1), "VALID", feature_group_count=2), IMAGE, f32(8, 3, 3, 3), 2 * 2 * 8 * (10 * 8) * 3 * 9, "conv2d"
    ),
    "depthwise": (
        conv((1, 1), "VALID", feature_group_count=6), IMAGE, f32(6, 1, 3, 3), 2 * 2 * 6 * (10 * 8) * 9, "conv2d"
    ),
    "groups of images": (
        conv((1, 1), "VALID", batch_group_count=2), IMAGE, KERNEL, 2 * 1 * 8 * (10 * 8) * 6 * 9, "conv2d"
    ),
    "channels last": (
        conv((1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        f32(2, 12, 10, 6), f32(3, 3, 6, 8), 2 * 2 * 8 * (10 * 8) * 6 * 9, "conv2d",
    ),
    "transposed": (
        conv((1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2)),
        IMAGE, KERNEL, 2 * 2 * 6 * (12 * 10) * 8 * 9, "conv_transpose2d",
    ),
    "transposed in groups": (
        conv((1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2), feature_group_count=2),
        IMAGE, f32(8, 3, 3, 3), 2 * 2 * 6 * (12 * 10) * 4 * 9, "conv_transpose2d",
    ),
    "one axis": (conv((2,), "VALID"), f32(2, 6, 12), f32(8, 6, 3), 2 * 2 * 8 * 5 * 6 * 3, "conv1d"),
    "three axes": (
        conv((1, 2, 1), "VALID"), f32(2, 6, 12, 9, 8), f32(8, 6, 3, 2, 2), 2 * 2 * 8 * (10 * 4 * 7) * 6 * 12, "conv3d"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_its_products(name: str) -> None:
    fn, image, kernel, flops, op = CONVOLUTIONS[name]
    graph = rl.from_jax(fn, image, kernel)
    assert op in ops(graph)
    assert rl.count(graph).flops == flops == xla(fn, image, kernel)[0]
    [node] = [node for node in graph.nodes if node.op == op]
    assert dict(node.attrs)["channels_last"] == (name == "channels last")


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "groups of images"])
def test_both_gradients_of_a_convolution_sum_the_same_products(name: str) -> None:
    fn, image, kernel, flops, _ = CONVOLUTIONS[name]
    both = jax.grad(lambda x, w: (fn(x, w) ** 2).sum(), (0, 1))
    assert counts(both, image, kernel).flops == 3 * flops


def test_padding_counts_as_full_products_also_where_it_is_uneven() -> None:
    fn = conv((2, 1), [(0, 1), (1, 0)])
    assert counts(fn, IMAGE, KERNEL).flops == 2 * 2 * 8 * (6 * 9) * 6 * 9
    # XLA leaves out what meets the padding: 2 rows of the window's 3 at the last of 6 output rows, 2 of 3 columns
    # at the first of 9: (5 * 3 + 2) * (8 * 3 + 2) pairs.
    assert xla(fn, IMAGE, KERNEL)[0] == 2 * 2 * 8 * 6 * (5 * 3 + 2) * (8 * 3 + 2)


# --- arithmetic that is no contraction --------------------------------------------------------------------------------

X = f32(8, 16)
N = 8 * 16
#: program: what it does to N elements, our operations, XLA's FLOPs and transcendentals, and why they differ.
ELEMENTWISE = {
    "add": (lambda x: x + x, N, N, 0, "the same"),
    "exp": (jnp.exp, N, 0, N, "XLA keeps transcendentals apart"),
    "cube": (lambda x: x**3, 2 * N, 2 * N, 0, "two products"),
    "select": (lambda x: jnp.where(x > 0, x, 1.0), 0, 2 * N, 0, "comparisons and selections count nothing here"),
    "cast": (lambda x: x.astype(jnp.bfloat16), 0, N, 0, "a conversion counts nothing here"),
    "sum": (lambda x: x.sum(-1), N, N - 8, 0, "n - 1 additions a row there, n here"),
    "max": (lambda x: x.max(-1), 0, N - 8, 0, "comparisons count nothing here"),
    "gelu": (jax.nn.gelu, 9 * N, 8 * N, N, "the tanh is apart"),
    "sigmoid": (jax.nn.sigmoid, 3 * N, 3 * N, N, "negate, add, divide; the exponential is free here"),
    "integers": (lambda x: jnp.arange(16) + 1, 0, 16, 0, "whole numbers count nothing here"),
    "sum of a window": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 2), "VALID"), N, N - 32, 0, "3 additions of 4 there"
    ),
    "softmax": (jax.nn.softmax, 4 * N, 4 * N - 8, N, "subtract, exp, sum, divide; there n - 1, max, no exp"),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_arithmetic_beside_xla(name: str) -> None:
    fn, ours, flops, transcendentals, _ = ELEMENTWISE[name]
    assert counts(fn, X).vector_flops == ours
    assert xla(fn, X)[1] == transcendentals
    assert abs(xla(fn, X)[0] - flops) <= N / 16 + 8


def test_scans_sorts_and_picks() -> None:
    assert counts(lambda x: jnp.cumsum(x, 1), X).vector_flops == N
    for fn in (jnp.sort, jnp.argsort, lambda x: lax.top_k(x, 4), lambda x: jnp.argmax(x, 0), lambda x: lax.cummax(x)):
        graph = rl.from_jax(fn, X)
        assert rl.count(graph).vector_flops == 0
        assert rl.count(graph).bytes > 0


def test_a_fourier_transform_counts_five_n_log_n() -> None:
    complex_row = Shape((8, 16), "complex64")
    assert counts(jnp.fft.fft, complex_row).vector_flops == 5 * N * 4
    assert counts(jnp.fft.rfft, X).vector_flops == 10 * N


def test_constants_are_folded_as_the_compiler_does() -> None:
    assert ops(rl.from_jax(lambda x: x * (jnp.float32(2) * 3 + jnp.zeros((8, 16))), X)) == ["mul"]
    assert ops(rl.from_jax(lambda x: (x, jnp.ones(4)), X)) == ["fill"]


def test_arrays_that_the_function_closes_over_are_weights_or_buffers_once() -> None:
    import numpy as np

    table, order = np.ones((16, 4), "float32"), np.arange(8)
    graph = rl.from_jax(lambda x: (x @ table, (x * 2) @ table, x[order]), X)
    kinds = [tensor.kind for tensor in graph.tensors.values() if tensor.name.startswith("constants.")]
    assert graph.parameters == 64
    assert kinds.count("weight") == 1
    assert set(kinds) == {"buffer", "weight"}


def test_unread_results_cost_nothing() -> None:
    def fn(x: Any) -> Any:
        jnp.exp(x) @ x.T
        return x + 1

    assert ops(rl.from_jax(fn, X)) == ["add"]


def test_views_move_nothing() -> None:
    graph = rl.from_jax(lambda x: x.T.reshape(4, 32)[:, :8].reshape(2, 2, 1, 8).squeeze() + 1, X)
    [row] = rl.count(graph).rows
    assert (row.read, row.write) == (4 * 32, 4 * 32)


# --- gathers and writes -----------------------------------------------------------------------------------------------


def test_an_embedding_reads_the_rows_that_it_is_asked_for() -> None:
    graph = rl.from_jax(lambda table, ids: table[ids], f32(1000, 64), i32(4, 7), weights=0)
    [row] = [row for row in rl.count(graph).rows if row.kernel.main.op == "embedding"]
    assert row.read == 4 * 28 * 64 + 4 * 28
    assert row.write == 4 * 28 * 64


def test_a_cache_is_written_in_place() -> None:
    def fn(cache: Any, new: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, new, (0, at, 0))

    graph = rl.from_jax(fn, f32(2, 4096, 64), f32(2, 1, 64), i32(), cache=0)
    assert rl.estimate(graph, "h100-sxm").memory.kv_cache == 4 * 2 * 4096 * 64
    [row] = [row for row in rl.count(graph).rows if row.kernel.main.op == "put"]
    assert row.write == 4 * 2 * 64
    assert row.read < 4 * 2 * 64 + 64


def test_a_scatter_adds_what_it_writes() -> None:
    found = counts(lambda x, ids, new: x.at[ids].add(new), f32(100, 16), i32(5), f32(5, 16))
    assert found.vector_flops == 5 * 16
    assert found.bytes < 4 * 100 * 16


def test_joins_pads_and_turns_write_their_result() -> None:
    for fn, size in (
        (lambda x: jnp.concatenate([x, x + 0]), 2 * N),
        (lambda x: jnp.pad(x, 1), 10 * 18),
        (lambda x: x[::-1], N),
    ):
        rows = rl.count(rl.from_jax(fn, X)).rows
        assert rows[-1].write == 4 * size


def test_random_numbers_are_written_and_keys_are_no_arithmetic() -> None:
    graph = rl.from_jax(lambda key, x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0), jax.random.key(0), X)
    assert rl.count(graph).flops == 0
    assert rl.count(graph).vector_flops <= 4 * N
    assert ops(rl.from_jax(lambda key: jax.random.split(key, 3), jax.random.key(0))) == ["rearrange"]


# --- control flow -----------------------------------------------------------------------------------------------------

SQUARE = f32(8, 8)
PRODUCT = 2 * 8 * 8 * 8


def counting(x: Any, stop: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < stop, lambda c: (c[0] + 2, c[1] @ x), (0, x))[1]


def test_a_fori_loop_with_literal_bounds_knows_its_trips() -> None:
    assert counts(lambda x: lax.fori_loop(0, 10, lambda i, c: c @ x, x), SQUARE).flops == 10 * PRODUCT


@pytest.mark.parametrize(
    ("test", "start", "step", "trips"),
    [
        (lambda i: i < 10, 0, 3, 4), (lambda i: i <= 9, 0, 3, 4), (lambda i: i > 0, 7, -2, 4),
        (lambda i: i >= 1, 7, -2, 4), (lambda i: i < 10, 1, 3, 3), (lambda i: i < 0, 0, 1, 0),
    ],
)  # fmt: skip
def test_a_while_loop_that_counts_to_a_number_knows_its_trips(test: Any, start: int, step: int, trips: int) -> None:
    graph = rl.from_jax(
        lambda x: lax.while_loop(lambda c: test(c[0]), lambda c: (c[0] + step, c[1] @ x), (start, x))[1], SQUARE
    )
    assert rl.count(graph).flops == trips * PRODUCT
    assert graph.info.notes == ()


def test_a_loop_of_unknown_length_is_counted_once_and_says_so() -> None:
    graph = rl.from_jax(counting, SQUARE, i32())
    assert rl.count(graph).flops == PRODUCT
    [note] = graph.info.notes
    assert note.startswith("while loop at test_jax.py:")
    assert note.endswith("trip count unknown, counted once; give trips={'while': n} or {0: n}")


@pytest.mark.parametrize("key", ["while", 0])
def test_trips_are_given_by_name_or_index(key: Any) -> None:
    graph = rl.from_jax(counting, SQUARE, i32(), trips={key: 5})
    assert rl.count(graph).flops == 5 * PRODUCT
    assert graph.info.notes == ()


def test_loops_multiply() -> None:
    def inner(x: Any) -> Any:
        return lax.scan(lambda c, _: (c @ c, None), x, None, length=3)[0]

    assert counts(lambda x: lax.fori_loop(0, 4, lambda i, c: inner(c), x), SQUARE).flops == 12 * PRODUCT


def test_a_condition_that_computes_counts_with_its_loop() -> None:
    def fn(x: Any) -> Any:
        return lax.while_loop(lambda c: jnp.sum(c * c) > 1e-3, lambda c: c @ c, x)

    found = counts(fn, SQUARE, trips={"while": 10})
    assert (found.flops, found.vector_flops) == (10 * PRODUCT, 10 * 2 * 64)


def test_the_branch_that_costs_most_counts() -> None:
    def fn(x: Any, which: Any) -> Any:
        return lax.switch(which, [jnp.sin, lambda y: y @ y @ y, lambda y: y @ y], x)

    graph = rl.from_jax(fn, SQUARE, i32())
    assert rl.count(graph).flops == 2 * PRODUCT
    assert "counted as branch 1 of 3, the most expensive" in graph.info.notes[0]
    assert counts(lambda x: fn(x, 2), SQUARE).flops == PRODUCT


def lstm(p: Any, xs: Any) -> Any:
    def cell(carry: Any, x: Any) -> Any:
        h, s = carry
        i, f, g, o = jnp.split(x @ p["w"] + h @ p["u"] + p["b"], 4, -1)
        s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(s)
        return (h, s), h

    zero = jnp.zeros((8, 32))
    return lax.scan(cell, (zero, zero), xs)[1]


LSTM = ({"w": f32(16, 128), "u": f32(32, 128), "b": f32(128)}, f32(20, 8, 16))


def test_an_lstm_by_scan() -> None:
    graph = rl.from_jax(lstm, *LSTM)
    found = rl.count(graph)
    step = 2 * 8 * (16 + 32) * 128
    assert found.flops == 20 * step
    # z: 2 additions of 128; three sigmoids at 3, two tanh, three products and an addition of 32.
    assert found.vector_flops == 20 * 8 * (2 * 128 + (3 * 3 + 2 + 3 + 1) * 32)
    # XLA counts the body of a loop once, and its counter: 1/20 of ours within the selections that it adds.
    once = xla(lstm, *LSTM)[0]
    assert found.flops + found.vector_flops == pytest.approx(20 * once, rel=0.02)
    # What a step reads of xs and writes of ys are its rows, 20 times.
    rows = {row.kernel.main.name: row for row in found.rows}
    assert rows["scan.write"].write == 4 * 8 * 32
    assert rows["scan.dot_general"].read == 4 * (8 * 16 + 16 * 128)


def test_a_scan_differentiates() -> None:
    found = counts(jax.grad(lambda p, x: lstm(p, x).sum()), *LSTM)
    # Forward; for each of both products the gradient of its weight; that of h, but not that of x, which nobody wants.
    step_x, step_h = 2 * 8 * 16 * 128, 2 * 8 * 32 * 128
    assert found.flops == 20 * (2 * step_x + 3 * step_h)


def test_a_stack_of_layers_reads_the_weights_of_one_a_turn() -> None:
    def fn(stack: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]

    graph = rl.from_jax(fn, f32(12, 16, 16), X, weights=0)
    [product] = [row for row in rl.count(graph).rows if row.flops]
    assert product.kernel.count == 12
    assert product.read == 4 * (8 * 16 + 16 * 16)
    assert rl.count(graph).flops == 12 * 2 * 8 * 16 * 16
    assert rl.estimate(graph, "h100-sxm").memory.weights == 4 * 12 * 16 * 16


def test_a_custom_gradient_is_the_user_s() -> None:
    @jax.custom_vjp
    def fn(x: Any) -> Any:
        return jnp.sin(x)

    fn.defvjp(lambda x: (fn(x), jnp.cos(x)), lambda c, g: (c * g,))
    assert ops(rl.from_jax(fn, X)) == ["sin"]
    assert ops(rl.from_jax(jax.grad(lambda x: fn(x).sum()), X)) == ["cos", "mul"]


def test_calls_are_scopes() -> None:
    @jax.jit
    def layer(w: Any, x: Any) -> Any:
        with jax.named_scope("mlp"):
            return jax.nn.relu(x @ w)

    names = {node.name for node in rl.from_jax(layer, f32(16, 4), X).nodes}
    assert {"layer.mlp.dot_general", "layer.mlp.relu.max"} <= names


# --- whole programs: within 1 % of XLA --------------------------------------------------------------------------------


def layernorm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def encoder(p: Any, x: Any, mask: Any, approximate: bool = True) -> Any:
    with jax.named_scope("attention"):
        q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 8, -1) for name in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0
        scores = jnp.where(mask[:, None, None, :], scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)
        x = layernorm(x + mixed @ p["o"], p["g1"], p["b1"])
    with jax.named_scope("mlp"):
        wide = jax.nn.gelu(x @ p["up"] + p["bu"], approximate=approximate)
        return layernorm(x + wide @ p["down"] + p["bd"], p["g2"], p["b2"])


B, S, D = 4, 128, 512
ENCODER = (
    {
        **{name: f32(D, D) for name in "qkvo"}, "up": f32(D, 4 * D), "down": f32(4 * D, D), "bu": f32(4 * D),
        **{name: f32(D) for name in ("bd", "g1", "b1", "g2", "b2")},
    },
    f32(B, S, D),
    Shape((B, S), "bool"),
)  # fmt: skip
ENCODER_FLOPS = 2 * B * S * 12 * D * D + 2 * (2 * B * S * S * D)


def agree(fn: Callable[..., Any], *args: Any, within: float = 0.01) -> rl.Counts:
    """All arithmetic but transcendental functions, which XLA keeps apart and ours count one each."""
    found, (flops, transcendental) = counts(fn, *args), xla(fn, *args)
    assert found.flops + found.vector_flops - transcendental == pytest.approx(flops, rel=within)
    return found


def test_a_transformer_block_agrees_with_xla() -> None:
    found = agree(encoder, *ENCODER)
    assert found.flops == ENCODER_FLOPS
    assert xla(encoder, *ENCODER)[0] == pytest.approx(ENCODER_FLOPS, rel=0.01)


@recent
def test_an_exact_gelu_differs_by_the_polynomial_that_xla_puts_for_erfc() -> None:
    def exact(p: Any, x: Any, mask: Any) -> Any:
        return encoder(p, x, mask, approximate=False)

    found, (flops, _) = counts(exact, *ENCODER), xla(exact, *ENCODER)
    polynomial = xla(lax.erfc, f32(B, S, 4 * D))[0]
    assert polynomial > 40 * B * S * 4 * D
    assert found.flops == ENCODER_FLOPS
    assert found.flops + found.vector_flops == pytest.approx(flops - polynomial, rel=0.01)


def test_the_parts_of_a_transformer_block_have_names_and_kinds() -> None:
    graph = rl.from_jax(encoder, *ENCODER)
    assert graph.name == "encoder"
    assert graph.parameters == 12 * D * D + 4 * D + 5 * D
    assert graph.tensors["p.q"].kind == "weight"
    assert graph.tensors["x"].kind == graph.tensors["mask"].kind == "input"
    assert "first argument, 'p'" in graph.info.notes[0]
    assert any(node.name.startswith("attention.") for node in graph.nodes)


def test_fusion_keeps_flops_and_spares_bytes_and_an_estimate_comes_out() -> None:
    graph = rl.from_jax(encoder, *ENCODER)
    plain, fused = rl.count(graph), rl.count(rl.passes.fuse(graph))
    assert (fused.flops, fused.vector_flops) == (plain.flops, plain.vector_flops)
    assert fused.bytes < 0.6 * plain.bytes
    est = rl.estimate(graph, "h100-sxm", mode="compiled")
    assert est.memory.weights == 4 * graph.parameters
    assert est.floor <= est.low <= est.time <= est.high


def loss(p: Any, x: Any, mask: Any) -> Any:
    return encoder(p, x, mask).sum()


def test_training_counts_the_backward_and_remat_the_second_forward() -> None:
    step = jax.value_and_grad(loss, (0, 1))
    found = agree(step, *ENCODER)
    assert found.flops == 3 * ENCODER_FLOPS
    again = counts(jax.value_and_grad(lambda p, x, m: jax.checkpoint(encoder)(p, x, m).sum(), (0, 1)), *ENCODER)
    # All of the forward again: the last norm's backward needs even the last product.
    assert again.flops == 4 * ENCODER_FLOPS


def decoder(p: Any, x: Any) -> Any:
    def rms(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def rope(x: Any) -> Any:
        angle = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
        c, s = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * c - b * s, a * s + b * c], -1)

    h = rms(x, p["n1"])
    q, k, v = ((h @ p[name]).reshape(*x.shape[:2], -1, 64) for name in "qkv")
    x = x + jax.nn.dot_product_attention(rope(q), rope(k), v, is_causal=True).reshape(x.shape) @ p["o"]
    h = rms(x, p["n2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


DECODER = {
    "q": f32(D, D), "k": f32(D, 128), "v": f32(D, 128), "o": f32(D, D), "n1": f32(D), "n2": f32(D),
    "gate": f32(D, 1408), "up": f32(D, 1408), "down": f32(1408, D),
}  # fmt: skip


@recent
def test_a_llama_like_block_with_grouped_heads_agrees_with_xla() -> None:
    # A masked dense attention computes the full square.
    assert agree(decoder, DECODER, f32(B, S, D)).flops == (
        2 * B * S * (2 * D * D + 2 * D * 128 + 3 * D * 1408) + 2 * (2 * B * S * S * D)
    )


@recent
def test_sizes_stay_symbolic() -> None:
    b, s = export.symbolic_shape("B, S")
    graph = rl.from_jax(decoder, DECODER, Shape((b, s, D), "float32"))
    assert graph.symbols == {"B", "S"}
    assert rl.count(graph, B=B, S=S).flops == counts(decoder, DECODER, f32(B, S, D)).flops
    # jax traces a range of symbolic length with one conversion more.
    assert rl.count(graph, B=B, S=S).bytes == pytest.approx(counts(decoder, DECODER, f32(B, S, D)).bytes, rel=1e-3)
    times = rl.estimate(graph, "h100-sxm", B=[1, 4], S=[128, 256], mode="compiled").time
    assert times.shape == (2, 2)


def net(p: Any, x: Any) -> Any:
    def layer(x: Any, name: str, stride: int = 1, pad: Any = "VALID", **options: Any) -> Any:
        axes = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, p[name], (stride, stride), pad, dimension_numbers=axes, **options)

    x = jax.nn.relu(layer(x, "stem", 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(layer(x, "wide", rhs_dilation=(2, 2)) * p["scale"] + p["shift"])
    x = jax.nn.relu(layer(x, "deep", feature_group_count=64))
    x = layer(x, "grouped", feature_group_count=4)
    x = layer(x, "up", pad=[(2, 2), (2, 2)], lhs_dilation=(2, 2))
    return x.mean((1, 2)) @ p["head"]


NET = (
    {
        "stem": f32(7, 7, 3, 64), "wide": f32(3, 3, 64, 64), "scale": f32(64), "shift": f32(64),
        "deep": f32(3, 3, 1, 64), "grouped": f32(1, 1, 16, 128), "up": f32(3, 3, 128, 64), "head": f32(64, 1000),
    },
    f32(4, 64, 64, 3),
)  # fmt: skip


def test_a_convolutional_net_agrees_with_xla() -> None:
    # 64 -> 29 (7x7, stride 2) -> 14 (pool) -> 10 (dilated) -> 8 (depthwise) -> 8 -> 8 spread -> head.
    products = (
        29 * 29 * 64 * 3 * 49
        + 10 * 10 * 64 * 64 * 9
        + 8 * 8 * 64 * 9
        + 8 * 8 * 128 * 16
        + 8 * 8 * 128 * 64 * 9
        + 64 * 1000
    )
    assert agree(net, *NET).flops == 2 * 4 * products
    est = rl.estimate(rl.from_jax(net, *NET), "h100-sxm", mode="compiled")
    assert est.time > 0


def test_padded_convolutions_differ_from_xla_by_what_meets_the_padding() -> None:
    fn, image, kernel = conv((1, 1), "SAME"), f32(4, 64, 28, 28), f32(64, 64, 3, 3)
    valid = (28 * 3 - 2) ** 2  # pairs of output and window that lie on the image, an axis
    assert counts(fn, image, kernel).flops == 2 * 4 * 64 * 64 * (28 * 3) ** 2
    assert xla(fn, image, kernel)[0] == 2 * 4 * 64 * 64 * valid


def mlp(p: Any, x: Any) -> Any:
    return ((jax.nn.relu(x @ p[0]) @ p[1]) ** 2).sum()


def test_a_gradient_is_two_more_products_a_product() -> None:
    p, x = [f32(64, 256), f32(256, 32)], f32(16, 64)
    first, second = 2 * 16 * 64 * 256, 2 * 16 * 256 * 32
    assert counts(mlp, p, x).flops == first + second
    assert counts(jax.value_and_grad(mlp, (0, 1)), p, x).flops == 3 * (first + second)
    # Without the gradient of x, the first layer has only that of its weight.
    assert counts(jax.value_and_grad(mlp), p, x).flops == 2 * first + 3 * second


# --- several devices, custom kernels ----------------------------------------------------------------------------------


@recent
def test_a_sharded_product_reduces_over_its_devices() -> None:
    from jax.sharding import AbstractMesh, PartitionSpec

    shard_map = getattr(jax, "shard_map", None) or pytest.importorskip("jax.experimental.shard_map").shard_map
    mesh, rows, columns = AbstractMesh((4,), ("x",)), PartitionSpec("x", None), PartitionSpec(None, "x")
    fn = shard_map(
        lambda x, w: lax.psum(x @ w, "x"), mesh=mesh, in_specs=(columns, rows), out_specs=PartitionSpec()
    )  # fmt: skip
    graph = rl.from_jax(fn, f32(8, 16), f32(16, 32))
    assert rl.count(graph).flops == 2 * 8 * 4 * 32
    [node] = [node for node in graph.nodes if node.op == "all_reduce"]
    assert dict(node.attrs)["devices"] == 4
    assert "counted for one device" in graph.info.notes[0]


def test_a_custom_kernel_is_an_error_or_a_visible_gap() -> None:
    def fn(x: Any) -> Any:
        return jax.pure_callback(lambda v: v, x, x) + 1

    with pytest.raises(rl.errors.UnknownOp, match=r"^test_jax\.py:\d+.*: no rule for pure_callback; unknown='report'"):
        rl.from_jax(fn, X)
    graph = rl.from_jax(fn, X, unknown="report")
    assert "arithmetic of pure_callback (1 call)" in rl.estimate(graph, "h100-sxm").not_modelled
    assert rl.count(graph).bytes == 4 * 4 * N


def test_decompositions_without_a_rule_are_reported_with_all_their_results() -> None:
    graph = rl.from_jax(lambda x: jnp.linalg.svd(x), SQUARE, unknown="report")
    assert len(graph.outputs) == 3


# --- bad input --------------------------------------------------------------------------------------------------------

BAD = {
    "no function": (lambda: rl.from_jax(3, X), "from_jax takes a function, given int"),
    "arguments missing": (lambda: rl.from_jax(lambda a, b: a, X), "lambda cannot be traced: TypeError: .*'b'"),
    "shapes": (lambda: rl.from_jax(jnp.matmul, X, X), "matmul cannot be traced: TypeError: dot_general requires"),
    "values asked for": (
        lambda: rl.from_jax(lambda x: x if x.sum() > 0 else -x, X), "lambda cannot be traced: TracerBoolConversionError"
    ),
    "the function's own error": (
        lambda: rl.from_jax(lambda x: [][1], X), "lambda cannot be traced: IndexError: list index out of range"
    ),
    "no array": (lambda: rl.from_jax(lambda a, b: a, X, {"k": "v"}), "b.k: str is no array; allowed: arrays"),
    "no such weight": (
        lambda: rl.from_jax(lambda params, x: x, X, X, weights="parms"), "weights='parms': .* did you mean params"
    ),
    "no such cache": (lambda: rl.from_jax(lambda x: x, X, cache=4), "cache=4: no such argument; there are 0, x"),
    "unknown policy": (lambda: rl.from_jax(lambda x: x, X, unknown="eror"), "unknown='eror'; allowed: error, report"),
    "no such loop": (
        lambda: rl.from_jax(counting, SQUARE, i32(), trips={"whil": 3}), "trips: no loop .* 'whil'; there are: 'while'"
    ),
    "trips": (lambda: rl.from_jax(counting, SQUARE, i32(), trips={0: 0}), r"trips\[0\]=0; allowed: whole numbers"),
    "no result": (lambda: rl.from_jax(lambda x: None, X), "lambda returns no array, so nothing of it"),
    "nothing in it": (lambda: rl.from_jax(lambda x: x, f32(0, 3)), r"x: a size of 0 in \[0, 3\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert isinstance(caught.value, rl.RooflineError)
    assert "\n" not in str(caught.value)


def test_options_that_a_newer_jax_might_rename_are_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(call: Any) -> Any:
        return call.params["no such option"]

    monkeypatch.setitem(RULES, "exp", renamed)  # type: ignore[arg-type]
    with pytest.raises(
        rl.RooflineError, match=r"test_jax\.py:\d+.*: exp as this version of jax writes it is not understood \(KeyError"
    ):
        rl.from_jax(lambda x: jnp.exp(x), X)
    with pytest.raises(rl.RooflineError, match=r"^exp: exp as this version of jax writes it"):
        rl.from_jax(jnp.exp, X)


def test_without_jax_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\nimport roofline as rl\n"
        "try:\n    rl.from_jax(abs, 1)\nexcept rl.errors.MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "from_jax needs jax: pip install 'roofline[jax]'\n"


def test_keyword_arguments_and_trees_have_names() -> None:
    graph = rl.from_jax(lambda x, *, params: x @ params["w"][0], X, params={"w": [f32(16, 4)]}, weights="params")
    assert graph.tensors["params.w.0"].kind == "weight"
    assert rl.from_jax(lambda p, x: p[0] + x, [X], X, weights=()).parameters == 0


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["b", "4*b", "floordiv(s, 2)", "mod(b, 3)", "b*s + -2*s + 1", "b^2", "max(b, s)"])
def test_a_symbolic_size_is_read_as_jax_means_it(text: str) -> None:
    scope = export.SymbolicScope()
    [dim] = export.symbolic_shape(text, scope=scope)
    python = text.replace("^", "**").replace("floordiv", "(lambda a, b: a // b)").replace("mod", "(lambda a, b: a % b)")
    for b, s in ((5, 7), (12, 4)):
        found = size_of(dim)
        value = found.at({"b": b, "s": s}) if hasattr(found, "at") else found
        expected = {
            "b": b, "4*b": 4 * b, "floordiv(s, 2)": s // 2, "mod(b, 3)": b % 3, "b*s + -2*s + 1": b * s - 2 * s + 1,
            "b^2": b * b, "max(b, s)": max(b, s),
        }[text]  # fmt: skip
        assert value == expected, python


def test_number_formats() -> None:
    names = ["bfloat16", "float8_e5m2fnuz", "uint16", "complex64", "key<fry>", "bool", "int4"]
    assert [format_of(name) for name in names] == ["bf16", "fp8", "int16", "fp64", "int64", "bool", "int4"]
    with pytest.raises(rl.errors.UnknownDType, match="complex128"):
        format_of("complex128")


def test_live_follows_what_a_loop_hands_on() -> None:
    b = rl.ops.Builder("loop", "fp32")
    x = b.input("x", (8,))
    start = b.op("view", x, name="carry", shape=(8,))
    y, handed = b.op("exp", start), b.op("tanh", x)
    graph = b.graph([y])
    assert [node.op for node in graph.live().nodes] == ["view", "exp"]
    assert [node.op for node in graph.live(follows={start: [handed]}).nodes] == ["view", "exp", "tanh"]


def test_a_builder_repeats_and_goes_back() -> None:
    b = rl.ops.Builder("repeat", "fp32")
    x = b.input("x", (8,))
    state = b.state
    with b.repeat(3), b.repeat(2):
        b.op("exp", x, count=2)
    assert b.nodes[-1].count == 12
    b.restore(state)
    assert b.nodes == ()


def test_uneven_padding_of_the_registry_s_convolutions() -> None:
    b = rl.ops.Builder("pad", "fp32")
    image, kernel = b.input("x", (1, 3, 8, 8)), b.weight("w", (4, 3, 3, 3))
    out = emit.convolution(b, image, kernel, stride=(1, 1), padding=((0, 1), (0, 1)), dilation=(1, 1))
    assert b.shape(out) == (1, 4, 7, 7)
    line = emit.convolution(
        b, b.input("y", (1, 3, 8)), b.weight("v", (4, 3, 3)), stride=(1,), padding=((0, 1),), dilation=(1,)
    )
    assert b.shape(line) == (1, 4, 7)
    work = node_work(b.nodes[-1], [b.shape(name) for name in b.nodes[-1].inputs])
    assert work.flops == 2 * 4 * 7 * 3 * 3
