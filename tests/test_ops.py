"""Formulas by hand: every expectation is arithmetic with its reason beside it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.ops.attention import attended
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import broadcast, get_op, node_work

B = rl.ops.symbol("B")
LAW = settings(deadline=None, max_examples=examples(200), derandomize=True, database=None)


def work(op: str, *shapes: tuple[Any, ...], **attrs: Any) -> rl.ops.Work:
    return get_op(op).work(shapes, attrs)


def output(op: str, *shapes: tuple[Any, ...], **attrs: Any) -> tuple[Any, ...]:
    return get_op(op).output(shapes, attrs)


# --- one convention: a multiply-add is two ---------------------------------------------------------------------------

CONTRACTIONS = {
    # name: (shapes, options, multiply-adds)
    "linear": (((3, 5, 7), (11, 7), (11,)), {}, 3 * 5 * 7 * 11),
    "matmul": (((3, 5, 7), (7, 11)), {}, 3 * 5 * 7 * 11),
    "bmm": (((2, 3, 5, 7), (2, 3, 7, 11)), {}, 2 * 3 * 5 * 7 * 11),
    "expert_linear": (((10, 7), (4, 11, 7)), {"top_k": 2}, 10 * 7 * 11),
    "triangular_solve": (((2, 7, 7), (2, 7, 3)), {}, 2 * 3 * 28),
    "expert_linear_grad": (((10, 11), (10, 7)), {"experts": 4}, 10 * 7 * 11),
    "conv1d": (((2, 3, 9), (5, 3, 4)), {}, 2 * 5 * 6 * 3 * 4),
    "conv2d": (((2, 3, 9, 8), (5, 3, 4, 2)), {}, 2 * 5 * 6 * 7 * 3 * 4 * 2),
    "conv_transpose2d": (((2, 3, 9, 8), (3, 5, 4, 2)), {}, 2 * 3 * 9 * 8 * 5 * 4 * 2),
    "attention_scores": (((2, 4, 5, 8), (2, 2, 7, 8)), {}, 2 * 4 * 5 * 7 * 8),
    "conv3d": (((2, 3, 6, 9, 8), (5, 3, 2, 4, 2)), {}, 2 * 5 * 5 * 6 * 7 * 3 * 2 * 4 * 2),
    "conv_transpose3d": (((2, 3, 6, 9, 8), (3, 5, 2, 4, 2)), {}, 2 * 3 * 6 * 9 * 8 * 5 * 2 * 4 * 2),
    "conv2d_grad_input": (((2, 5, 6, 7), (5, 3, 4, 2)), {"image": (3, 9, 8)}, 2 * 5 * 6 * 7 * 3 * 4 * 2),
    "conv2d_grad_weight": (((2, 3, 9, 8), (2, 5, 6, 7)), {"kernel": (3, 4, 2)}, 2 * 5 * 6 * 7 * 3 * 4 * 2),
    "attention_keys_grad": (((2, 4, 5, 7), (2, 4, 5, 8)), {"g": 2}, 2 * 4 * 5 * 7 * 8),
    "attention_values": (((2, 4, 5, 7), (2, 2, 7, 8)), {}, 2 * 4 * 5 * 7 * 8),
}


def test_the_table_of_contractions_is_complete() -> None:
    assert CONTRACTIONS.keys() == {
        name for name, op in rl.ops.OPS.items() if op.kind in ("matmul", "conv", "attention")
    }


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_every_contraction_counts_two_per_multiply_add(name: str) -> None:
    shapes, attrs, products = CONTRACTIONS[name]
    assert work(name, *shapes, **attrs).flops == 2 * products
    assert work(name, *shapes, **attrs).vector == 0


def test_only_contractions_count_as_flops() -> None:
    for name, op in rl.ops.OPS.items():
        if name not in CONTRACTIONS and name in POINTWISE:
            assert op.work([(4, 8), (8,)], {}).flops == 0, name


def test_a_gemm_by_hand() -> None:
    # 4096^3 products of two operations: 1.374e11, the figure on every matmul benchmark.
    assert work("linear", (4096, 4096), (4096, 4096)).flops == 2 * 4096**3 == 137_438_953_472


# --- convolutions ----------------------------------------------------------------------------------------------------


def test_conv2d_with_groups_stride_and_padding() -> None:
    # (56 + 2*1 - 3) // 2 + 1 = 28 points a side; each sums 64/4 channels x 3 x 3 taps.
    shapes = (2, 64, 56, 56), (128, 16, 3, 3)
    options = {"stride": 2, "padding": 1, "groups": 4}
    assert output("conv2d", *shapes, **options) == (2, 128, 28, 28)
    assert work("conv2d", *shapes, **options).flops == 2 * (2 * 128 * 28 * 28) * (16 * 3 * 3)


def test_conv2d_with_dilation() -> None:
    # Three taps two apart span 5: with padding 2 the size stays, and the taps stay nine.
    shapes = (1, 8, 20, 20), (8, 8, 3, 3)
    assert output("conv2d", *shapes, padding=2, dilation=2) == (1, 8, 20, 20)
    assert work("conv2d", *shapes, padding=2, dilation=2).flops == 2 * 8 * 20 * 20 * 8 * 9


def test_conv2d_differs_by_axis() -> None:
    # Height (9 + 2*0 - 3) // 2 + 1 = 4, width (8 + 2*1 - 2) // 1 + 1 = 9.
    assert output("conv2d", (1, 2, 9, 8), (4, 2, 3, 2), stride=(2, 1), padding=(0, 1)) == (1, 4, 4, 9)


def test_depthwise_conv_has_one_input_channel_a_filter() -> None:
    assert work("conv2d", (1, 32, 10, 10), (32, 1, 3, 3), padding=1, groups=32).flops == 2 * 32 * 10 * 10 * 9


@pytest.mark.parametrize("groups", [1, 3, 64])
def test_channels_that_do_not_match_the_groups_are_refused(groups: int) -> None:
    with pytest.raises(
        rl.errors.ShapeError, match=f"64 input channels, but {groups} groups of 16 input channels in the kernel"
    ):
        output("conv2d", (2, 64, 56, 56), (128, 16, 3, 3), groups=groups)


def test_output_channels_must_split_into_groups() -> None:
    with pytest.raises(rl.errors.ShapeError, match="6 output channels"):
        output("conv2d", (1, 8, 5, 5), (6, 2, 1, 1), groups=4)


@pytest.mark.parametrize(
    ("name", "shapes", "options"),
    [
        ("conv2d", ((1, 1, 2, 9), (1, 1, 3, 3)), {}),
        ("conv2d", ((1, 1, 4, 4), (1, 1, 3, 3)), {"dilation": 2}),
        ("conv1d", ((1, 1, 2), (1, 1, 3)), {}),
        ("maxpool2d", ((1, 1, 2, 2),), {"r": 3}),
        ("conv_transpose2d", ((1, 1, 1, 1), (1, 1, 3, 3)), {"padding": 2}),
    ],
)
def test_a_kernel_larger_than_its_input_is_refused(name: str, shapes: Any, options: Any) -> None:
    with pytest.raises(rl.errors.ShapeError, match="larger than its padded input"):
        output(name, *shapes, **options)


def test_transposed_conv_spreads_every_input_point() -> None:
    # (7 - 1) * 2 - 2 * 1 + 3 + 1 = 14; 7 x 7 input points, 64 channels, each spread over 32 x 3 x 3.
    shapes = (2, 64, 7, 7), (64, 32, 3, 3)
    options = {"stride": 2, "padding": 1, "output_padding": 1}
    assert output("conv_transpose2d", *shapes, **options) == (2, 32, 14, 14)
    assert work("conv_transpose2d", *shapes, **options).flops == 2 * (2 * 64 * 7 * 7) * (32 * 3 * 3)


def test_transposed_conv_has_the_products_of_the_conv_that_it_transposes() -> None:
    back = work("conv_transpose2d", (2, 64, 7, 7), (64, 32, 3, 3), stride=2, padding=1, output_padding=1)
    assert output("conv2d", (2, 32, 14, 14), (64, 32, 3, 3), stride=2, padding=1) == (2, 64, 7, 7)
    assert back.flops == work("conv2d", (2, 32, 14, 14), (64, 32, 3, 3), stride=2, padding=1).flops


def test_transposed_conv_with_groups_has_all_output_channels_and_a_share_of_the_products() -> None:
    assert output("conv_transpose2d", (1, 8, 4, 4), (8, 3, 2, 2), (6,), stride=2, groups=2) == (1, 6, 8, 8)
    assert work("conv_transpose2d", (1, 8, 4, 4), (8, 3, 2, 2), (6,), stride=2, groups=2).flops == 2 * 8 * 16 * 3 * 4


def test_pooling_strides_by_its_window_unless_told() -> None:
    assert output("maxpool2d", (1, 4, 8, 8), r=2) == (1, 4, 4, 4)
    assert output("maxpool2d", (1, 64, 112, 112), r=3, stride=2, padding=1) == (1, 64, 56, 56)
    assert work("maxpool2d", (1, 4, 8, 8), r=2) == rl.ops.Work()  # comparisons are no FLOPs
    assert work("avgpool2d", (1, 4, 8, 8), r=(2, 4)).vector == 4 * (4 * 2) * (2 * 4)


# --- attention -------------------------------------------------------------------------------------------------------


def mask(q: int, k: int, causal: bool, window: int) -> Any:
    """Which of ``k`` keys each of ``q`` queries sees; the last query stands at the last key."""
    place, key = np.arange(q)[:, None] + (k - q), np.arange(k)[None, :]
    seen = key <= place if causal else np.ones((q, k), dtype=bool)
    return seen & (key > place - window) if window and causal else seen


@LAW
@given(q=st.integers(1, 14), k=st.integers(1, 14), window=st.integers(0, 16))
def test_attended_pairs_equal_the_mask(q: int, k: int, window: int) -> None:
    wanted = int(mask(q, k, True, window).sum())
    assert attended(q, k, True, window) == wanted
    assert attended(float(q), float(k), True, window) == wanted
    assert list(attended(np.full(2, float(q)), np.full(2, float(k)), True, window)) == [wanted, wanted]
    assert attended(q, k, False, 0) == q * k


@LAW
@given(q=st.integers(1, 14), k=st.integers(1, 14), window=st.integers(1, 16))
def test_keys_read_are_those_that_some_query_sees(q: int, k: int, window: int) -> None:
    seen = int(mask(q, k, True, window).any(axis=0).sum())
    heads, groups, width = 4, 2, 8
    for name, first in (("attention_scores", (1, heads, q, width)), ("attention_values", (1, heads, q, k))):
        found = work(name, first, (1, groups, k, width), causal=True, window=window)
        assert found.reads == {1: groups * seen * width}


def test_the_mask_never_gives_negative_work() -> None:
    assert attended(100, 1, True, 0) == 1
    assert attended(100, 2, True, 5) == 3


def test_grouped_heads_compute_by_query_head_and_read_by_key_head() -> None:
    few, many = (work("attention_scores", (1, 32, 1, 128), (1, g, 500, 128)) for g in (8, 32))
    assert few.flops == many.flops == 2 * 32 * 500 * 128
    with pytest.raises(rl.errors.ShapeError, match="32 query heads, which is not a multiple of 5"):
        work("attention_scores", (1, 32, 1, 128), (1, 5, 500, 128))


def test_softmax_of_attention_counts_only_what_the_mask_leaves() -> None:
    assert work("attention_softmax", (1, 2, 4, 4), causal=True).vector == 5 * 2 * (1 + 2 + 3 + 4)


# --- experts, tables, caches -----------------------------------------------------------------------------------------


def test_one_token_reads_its_own_experts_only() -> None:
    # One token sent to 2 of 8 experts: 2 pairs, 2 experts' matrices of 32 x 16.
    found = work("expert_linear", (2, 16), (8, 32, 16), (8, 32), top_k=2)
    assert found.reads == {1: pytest.approx(2 * 32 * 16), 2: pytest.approx(2 * 32)}


def test_a_batch_reads_the_distinct_experts_that_it_touches() -> None:
    # Two tokens, 2 of 8 each: 8 (1 - (6/8)^2) = 3.5 experts on average, though 4 are asked for.
    assert work("expert_linear", (4, 16), (8, 32, 16), top_k=2).reads[1] == pytest.approx(3.5 * 32 * 16)
    assert work("expert_linear", (2 * 10**6, 16), (8, 32, 16), top_k=2).reads[1] == pytest.approx(8 * 32 * 16)


def test_an_expert_layer_computes_each_routed_pair_once() -> None:
    assert work("expert_linear", (4, 16), (8, 32, 16), top_k=2).flops == 2 * 4 * 16 * 32


def test_a_table_is_read_by_rows() -> None:
    assert work("embedding", (50257, 768), (2, 10)).reads == {0: 2 * 10 * 768}
    assert output("embedding", (50257, 768), (2, 10)) == (2, 10, 768)
    assert work("gather", (1000,), (7,)).reads == {0: 7}
    assert work("gather_rows", (100, 16), (7,)).reads == {0: 7 * 16}


def test_a_cache_update_writes_the_new_positions_only() -> None:
    found = work("cache_update", (2, 8, 4096, 128), (2, 8, 1, 128))
    assert (found.reads, found.writes) == ({0: 0}, 2 * 8 * 1 * 128)
    assert output("cache_update", (2, 8, 4096, 128), (2, 8, 1, 128)) == (2, 8, 4096, 128)


# --- the rest --------------------------------------------------------------------------------------------------------


def test_row_wise_operators() -> None:
    assert work("softmax", (6, 10)).vector == 5 * 60  # scale, subtract, exponential, sum, divide
    assert work("layernorm", (6, 10), (10,), (10,)).vector == 7 * 60
    assert work("rmsnorm", (6, 10), (10,)).vector == 4 * 60
    assert work("sum", (6, 10)).vector == 60
    assert output("sum", (6, 10)) == (6,)
    assert output("argmax", (6, 10)) == (6,)
    assert output("topk", (6, 10), k=3) == (6, 3)
    assert output("transpose_copy", (6, 10, 3)) == (6, 3, 10)


def test_pointwise_counts_output_elements_after_broadcasting() -> None:
    assert output("add", (4, 1, 3), (5, 1)) == (4, 5, 3)
    assert work("add", (4, 1, 3), (5, 1)).vector == 60
    assert work("elementwise", (4, 5), flops=7).vector == 140
    assert work("relu", (4, 5)).vector == 0  # a comparison


@LAW
@given(shapes=st.lists(st.lists(st.sampled_from([1, 1, 3, 4]), max_size=3), min_size=1, max_size=3))
def test_broadcasting_follows_numpy(shapes: list[list[int]]) -> None:
    given_shapes = [tuple(shape) for shape in shapes]
    try:
        wanted = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(rl.errors.ShapeError, match="cannot broadcast"):
            broadcast(given_shapes)
    else:
        assert broadcast(given_shapes) == wanted


def test_joining_and_viewing() -> None:
    assert output("cat", (2, 3, 4), (2, 5, 4), axis=1) == (2, 8, 4)
    assert output("cat", (2, B), (2, 3), axis=-1) == (2, B + 3)
    for fault, shapes in (("another axis differs", ((2, 3), (4, 3))), ("different rank", ((2, 3), (2, 3, 1)))):
        with pytest.raises(rl.errors.ShapeError, match=fault):
            output("cat", *shapes, axis=1)
    assert output("view", (2, B, 6), shape=(B, 12)) == (B, 12)
    with pytest.raises(rl.errors.ShapeError, match="the element counts differ"):
        output("view", (2, 6), shape=(13,))
    assert output("expand", (2, 1, 6), shape=(2, B, 6)) == (2, B, 6)
    with pytest.raises(rl.errors.ShapeError, match="only axes of size 1 repeat"):
        output("expand", (2, 3), shape=(2, 6))
    assert output("upsample2d", (1, 2, 3, 4), scale=2) == (1, 2, 6, 8)
    assert output("fill", shape=(3, 4)) == (3, 4)


@pytest.mark.parametrize("name", rl.ops.OPS)
def test_every_operator_is_documented(name: str) -> None:
    assert rl.ops.OPS[name].doc


def test_an_unknown_operator_is_no_silent_zero() -> None:
    with pytest.raises(rl.errors.UnknownOp, match="unknown operator 'sofmax'; did you mean softmax"):
        get_op("sofmax")
    with pytest.raises(rl.errors.UnknownOp, match="unknown operator 'zzz'; known: abs, add"):
        get_op("zzz")
    node = rl.ops.Node("layers.0.act", "swish", ("x",), ("y",))
    with pytest.raises(rl.errors.UnknownOp, match=r"layers\.0\.act: unknown operator 'swish'"):
        node_work(node, [(4,)])
    graph = rl.Graph(
        "g", {"x": rl.ops.Tensor("x", (4,), "fp32", "input"), "y": rl.ops.Tensor("y", (4,), "fp32")}, (node,)
    )
    for use in (
        rl.count,
        rl.passes.fuse,
        partial(rl.passes.cast, dtype="bf16"),
        partial(rl.estimate, chip="h100-sxm"),
    ):
        with pytest.raises(rl.errors.UnknownOp, match=r"layers\.0\.act"):
            use(graph)


def test_errors_of_a_node_name_it() -> None:
    with pytest.raises(rl.errors.ShapeError, match=r"^up: linear takes .* axis 'k' is both 3 and 4"):
        node_work(rl.ops.Node("up", "linear", ("x", "w"), ("y",)), [(2, 3), (5, 4)])
    with pytest.raises(rl.errors.ShapeError, match=r"^top: topk needs the option 'k'"):
        node_work(rl.ops.Node("top", "topk", ("x",), ("y",)), [(2, 3)])
