"""What a runtime launches for an operator, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest

import roofline as rl
from roofline.cost.host import LAUNCH
from roofline.cost.lowering import EAGER, RUNTIMES
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder

CHIP = "h100-sxm"


def convolution(bias: bool, batch: object = 8) -> rl.Graph:
    b = Builder("conv", "bf16")
    image = b.op("relu", b.input("x", (batch, 64, 56, 56)))
    operands = [image, b.weight("w", (128, 64, 3, 3)), *([b.weight("b", (128,))] if bias else [])]
    return b.graph([b.op("conv2d", *operands, padding=1)])


def test_every_rule_names_an_operator_and_a_source() -> None:
    for rules in RUNTIMES.values():
        for op, rule in ((op, rule) for op, each in rules.items() for rule in each):
            assert op in rl.ops.OPS or op in ("sdpa", "sdpa_backward", "batch_norm_sums")
            assert rule.launches
            assert rule.source.startswith("https://")


def test_a_bias_is_a_kernel_of_its_own_where_the_framework_adds_it_after() -> None:
    plain, biased = (rl.estimate(convolution(bias), CHIP, mode="graph") for bias in (False, True))
    assert (plain.launches, biased.launches) == (2, 3)
    assert biased.counts.launches == 2  # operators
    assert biased.device_time > plain.device_time
    assert rl.estimate(convolution(True), CHIP, mode="compiled").launches == 2
    (parts,) = (time.parts for _, time in biased.timed if time.parts)
    assert [part.op for part in parts] == ["conv2d", "add"]
    times = [time for _, time in biased.timed]
    assert times[1].expected == pytest.approx(sum(part.count * part.time.expected for part in parts))


def test_the_host_launches_every_kernel() -> None:
    plain, biased = (rl.estimate(convolution(bias, 1), CHIP) for bias in (False, True))
    launch = rl.chip(CHIP).efficiency.host * LAUNCH
    assert biased.host_time - plain.host_time == pytest.approx((biased.launches - plain.launches) * launch)


def test_a_grid_is_its_points() -> None:
    graph, sizes = convolution(True, symbol("B")), [1, 3, 64]
    whole = rl.estimate(graph, [CHIP, "a100-80gb-sxm"], B=sizes)
    for at, batch in enumerate(sizes):
        point = rl.estimate(graph, "a100-80gb-sxm", B=batch)
        assert whole.time[1, at] == pytest.approx(point.time)
        assert whole.high[1, at] == pytest.approx(point.high)
    assert np.all(whole.launches == 3)
    assert set(RUNTIMES) >= {"", EAGER}


# --- attention --------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch")


def attention(bias: str, dtype: object = None, heads: int = 64, **options: object) -> rl.Graph:
    """The graph of one call in the shapes of T5's first encoder layer, with a bias that lies as it says."""

    def program(q: object, k: object, v: object, mask: object) -> object:
        if bias in ("by head", "contiguous"):
            mask = mask.permute(2, 0, 1)[None]
        mask = mask.contiguous() if bias == "contiguous" else mask[..., 0] > 0 if bias == "bool" else mask
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask if bias else None, **options)

    kind = dtype or torch.bfloat16
    operands = [torch.empty(16, 512, 8, heads, dtype=kind, device="meta") for _ in range(3)]
    return rl.from_torch(program, *operands, torch.empty(512, 512, 8, dtype=kind, device="meta"))


def parts(graph: rl.Graph, chip: str = CHIP) -> list[tuple[str, int]]:
    estimate = rl.estimate(graph, chip, mode="graph")
    return [(part.op, part.count) for _, time in estimate.timed for part in time.parts]


def test_a_bias_whose_keys_lie_apart_takes_attention_apart() -> None:
    """As measured in zoo/ops.csv, t5-small: the kernels of the encoder's self-attention and their time, 937 us."""
    graph = attention("by head")
    assert parts(graph) == [
        ("cast", 3), ("mul_scalar", 2), ("copy", 2), ("copy", 1), ("bmm", 1), ("add", 1), ("softmax", 1),
        ("elementwise", 1), ("reduce", 1), ("fill", 1), ("where", 1), ("cast", 1), ("bmm", 1), ("cast", 1),
    ]  # fmt: skip
    estimate = rl.estimate(graph, CHIP, mode="graph")
    assert estimate.launches == 18
    assert estimate.device_time == pytest.approx(937e-6, rel=0.15)
    assert estimate.flops == rl.estimate(attention("contiguous"), CHIP).flops


def test_other_biases_leave_it_whole() -> None:
    assert parts(attention("")) == parts(attention("", is_causal=True)) == []
    whole = [row.kernel for row in rl.estimate(attention("contiguous"), CHIP).rows if row.kernel.kind == "attention"]
    assert len(whole) == 1
    assert parts(attention("contiguous", heads=320)) == []  # the memory efficient kernel


def test_a_mask_of_bool_is_written_as_numbers_first() -> None:
    assert parts(attention("bool")) == [("fill", 1), ("elementwise", 1), ("where", 1), ("attention_scores", 1)]


def test_odd_heads_are_padded_for_flash_attention_and_taken_apart_with_a_mask() -> None:
    assert parts(attention("", heads=60)) == [("fill", 3), ("rearrange", 3), ("attention_scores", 1)]
    assert ("softmax", 1) in parts(attention("contiguous", heads=60))


def test_heads_that_share_keys_are_repeated_where_no_kernel_takes_them() -> None:
    def program(q: object, k: object) -> object:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    wide, half = (
        rl.from_torch(program, *(torch.empty(2, heads, 64, 64, dtype=dtype, device="meta") for heads in (8, 2)))
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert ("rearrange", 2) in parts(wide)
    assert not parts(half)


def test_gradients_of_attention_that_was_taken_apart_are_too() -> None:
    def step(q: object, k: object, v: object, mask: object) -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask.permute(2, 0, 1)[None])
        out.sum().backward()

    q, k, v = (torch.randn(2, 4, 32, 64, requires_grad=True) for _ in range(3))
    graph = rl.from_torch(step, q, k, v, torch.zeros(32, 32, 4))
    assert sum(count for op, count in parts(graph) if op == "bmm") == 6


# --- what is captured as it runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_of_torch_takes_its_fast_path(norm_first: bool) -> None:
    """As measured in zoo/ops.csv, encoder-layer-nn: nine kernels a layer, bias, activation and residual inside."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=norm_first).eval()
    graph = rl.from_torch(layer, torch.zeros(2, 16, 64))
    assert rl.estimate(graph, CHIP).launches == 9
    assert sum(node.op == "layernorm" for node in graph.nodes) == 2
    assert rl.estimate(rl.from_torch(layer.train(), torch.zeros(2, 16, 64)), CHIP).launches > 9


def test_attention_whose_weights_are_asked_for_is_taken_apart() -> None:
    layer, x = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval(), torch.zeros(2, 16, 64)
    asked, not_asked = (rl.from_torch(layer, x, x, x, kwargs={"need_weights": need}) for need in (True, False))
    assert (rl.estimate(asked, CHIP).launches, rl.estimate(not_asked, CHIP).launches) == (9, 3)
    assert rl.count(asked).flops == rl.count(not_asked).flops == 2 * 32 * 4 * 64 * 64 + 4 * 2 * 16 * 16 * 64


def test_rows_that_lie_apart_are_copied_before_a_norm_and_a_softmax() -> None:
    """As measured in zoo/ops.csv, dit-b2 at 64 images: norms 34 us and their copies 93 us each."""

    def program(x: object) -> object:
        rows = x.transpose(1, 2) * 2
        return torch.nn.functional.layer_norm(rows, (768,)), rows.softmax(-1), x.softmax(-1)

    graph = rl.from_torch(program, torch.empty(64, 768, 256, dtype=torch.bfloat16, device="meta"))
    assert parts(graph) == [("copy", 1), ("layernorm", 1), ("copy", 1), ("softmax", 1)]
    estimate = rl.estimate(graph, CHIP, mode="graph")
    (norm,) = (time for row, time in estimate.timed if row.kernel.main.op == "layernorm")
    assert [part.time.expected for part in norm.parts] == pytest.approx([93.4e-6, 34.1e-6], rel=0.3)


@pytest.mark.parametrize(("first", "copies"), [("heads", 1), ("positions", 0)])
def test_the_result_of_attention_lies_as_its_queries_do(first: str, copies: int) -> None:
    def program(x: object) -> object:
        q = x if first == "heads" else x.transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, -1, 256)

    shape = (2, 4, 32, 64) if first == "heads" else (2, 32, 4, 64)
    graph = rl.from_torch(program, torch.empty(shape, dtype=torch.bfloat16, device="meta"))
    assert sum(node.op == "copy" for node in graph.nodes) == copies


def test_a_linear_layer_on_rows_that_lie_apart_adds_its_bias_after() -> None:
    """As measured in zoo/ops.csv, dit-b2: the last layer's copy_, mm and add_."""
    layer, x = torch.nn.Linear(64, 16), torch.zeros(2, 64, 32)
    apart = rl.from_torch(lambda x: layer(x.transpose(1, 2)), x)
    whole = rl.from_torch(layer, torch.zeros(2, 32, 64))
    assert (rl.estimate(apart, CHIP).launches, rl.estimate(whole, CHIP).launches) == (3, 1)


def test_narrow_heads_take_the_tiles_of_wider_ones_in_cudnn() -> None:
    """As measured in zoo/ops.csv, phi3-4layers: heads of 96 in a kernel for 128, 289 us."""

    def program(q: object, k: object, v: object) -> object:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    operands = [[torch.empty(4, 32, 2048, width, dtype=torch.bfloat16, device="meta") for _ in "qkv"]
                for width in (96, 128)]  # fmt: skip
    graphs = [rl.from_torch(program, *each) for each in operands]
    narrow, full = (rl.estimate(graph, CHIP, mode="graph") for graph in graphs)
    assert narrow.device_time == pytest.approx(289.2e-6, rel=0.15)
    assert 0.9 * full.device_time < narrow.device_time <= full.device_time
    assert rl.count(graphs[0]).flops == rl.count(graphs[1]).flops * 96 / 128
    assert rl.estimate(graphs[0], "a100-80gb-sxm").device_time < rl.estimate(graphs[1], "a100-80gb-sxm").device_time


def test_a_cat_of_one_part_beside_empty_ones_is_a_copy() -> None:
    graph = rl.from_torch(lambda x: torch.cat([x, x[:, :0]], 1), torch.zeros(4, 8))
    assert [node.op for node in graph.nodes] == ["cat"]


# --- training --------------------------------------------------------------------------------------------------------


def test_the_backward_of_a_norm_copies_what_lies_apart() -> None:
    """As measured in zoo/ops.csv, dit-b2 training: its inputs lie apart, their gradients do not."""

    def program(x: object) -> object:
        return torch.nn.functional.layer_norm(x.transpose(1, 2), (64,)).relu()

    x = torch.empty(32, 64, 128, device="meta", requires_grad=True)
    graph = rl.from_torch(program, x, backward=True)
    assert parts(graph) == [("copy", 1), ("layernorm", 1), ("copy", 1), ("layernorm_grad", 1)]


def test_parts_that_lie_apart_are_joined_one_by_one() -> None:
    """12 of zoo/ops.csv, dit-b2 training: CatArrayBatchedCopy takes 75.5 us where a plain copy would take 28."""

    def program(x: object) -> object:
        return torch.stack([x.transpose(1, 2)] * 3)

    graph = rl.from_torch(program, torch.empty(32, 256, 12, 64, dtype=torch.bfloat16, device="meta"))
    assert rl.estimate(graph, CHIP, mode="graph").device_time == pytest.approx(75.5e-6, rel=0.3)


@pytest.mark.parametrize(
    ("image", "window", "measured"),
    [((64, 64, 112, 112), (3, 2, 1), 570.6e-6), ((16, 32, 256, 256), (2, 2, 0), 315.8e-6),
     ((16, 64, 128, 128), (2, 2, 0), 159.6e-6), ((16, 128, 64, 64), (2, 2, 0), 80.5e-6)],
)  # fmt: skip
def test_the_backward_of_a_maximum_searches_its_windows(
    image: tuple[int, ...], window: tuple[int, ...], measured: float
) -> None:
    x = torch.empty(image, dtype=torch.bfloat16, device="meta", requires_grad=True)
    graph = rl.from_torch(lambda x: torch.nn.functional.max_pool2d(x, *window), x, backward=True)
    (back,) = (time for row, time in rl.estimate(graph, CHIP).timed if row.kernel.main.op == "pool_grad")
    assert back.expected == pytest.approx(measured, rel=0.25)


def test_a_kernel_whose_work_another_does_takes_no_time() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 64, 1)).to("meta", torch.bfloat16)
    x = torch.empty(8, 64, 56, 56, dtype=torch.bfloat16, device="meta", requires_grad=True)
    estimate = rl.estimate(rl.from_torch(model, x, backward=True), CHIP, mode="graph")
    assert 0 in [time.launches for _, time in estimate.timed], "sums that the gradient of the input has"
    assert np.isfinite(estimate.device_time)


def test_a_kernel_that_reads_views_of_its_own_results_comes_apart() -> None:
    """Fused as far as can be, attention in fp8 rounds a reshaped result of its own; no figure of a chip is fitted."""
    graph = rl.passes.quantize(rl.model("llama-3-70b", phase="decode", layers=1), activations="fp8")
    fused = rl.estimate(rl.passes.fuse(graph, "ideal"), "b200-sxm", batch=1, context=512)
    assert 0 < fused.time < rl.estimate(graph, "b200-sxm", batch=1, context=512).time
