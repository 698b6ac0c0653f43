"""The access table, why kernels fuse or do not, and what fusing costs, against counts by hand and published ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.analysis.fusing import flash_tiles, pressure, store_or_recompute
from roofline.cli.output import plain
from roofline.cost import compiled as fusing
from roofline.ir.units import format_si
from roofline.passes.fusion.fuse import POLICIES
from roofline.passes.fusion.inline import inline

N = 2**24
H100 = "h100-sxm"


def chain(op: str = "relu", steps: int = 5, inputs: int = 1, n: int = N) -> rl.Graph:
    return rl.workload([{"op": "elementwise", "n": n, "count": steps, "inputs": inputs}], dtype="fp32")


def naive_attention(n: int, heads: int = 32, d: int = 128) -> rl.Graph:
    """Scores, softmax, values; no scale."""
    b = rl.ops.Builder("attention", "bf16")
    q, k, v = (b.input(name, (1, heads, n, d)) for name in "qkv")
    scores = b.op("attention_scores", q, k, name="scores")
    return b.graph([b.op("attention_values", b.op("softmax", scores, name="softmax"), v, name="values")])


def mlp(tokens: int = 8192, hidden: int = 4096, wide: int = 16384, dtype: str = "bf16") -> rl.Graph:
    """An up-projection with bias and GELU, a norm, a down-projection, a residual and a softmax over both axes."""
    b = rl.ops.Builder("mlp", dtype)
    x = b.input("x", (tokens, hidden))
    up = b.op("linear", x, b.weight("w_up", (wide, hidden)), name="up")
    biased = b.op("bias_add", up, b.weight("b_up", (wide,)), name="bias")
    act = b.op("gelu", biased, name="act")
    normed = b.op("rmsnorm", act, b.weight("g", (wide,)), name="norm")
    down = b.op("linear", normed, b.weight("w_down", (hidden, wide)), name="down")
    total = b.op("add", down, x, name="residual")
    rows = b.op("softmax", total, name="rows")
    return b.graph([b.op("reduce", rows, axes=(0,), name="columns")])


# --- the access table: counts by hand ---------------------------------------------------------------------------------


def per_element(graph: rl.Graph, policy: str, n: float = N) -> float:
    return rl.analysis.fusion(graph)[policy].accesses / n


def test_five_pointwise_operators_access_ten_against_two() -> None:
    assert [per_element(chain(), policy) for policy in POLICIES] == [10, 2, 2, 2, 10, 2]


def test_a_chain_of_four_binary_operators_accesses_twelve_against_six() -> None:
    # Golden topic 9, fusion-binary-chain: 3 k against k + 2.
    graph = chain(steps=4, inputs=2)
    assert (per_element(graph, "eager"), per_element(graph, "chains")) == (12, 6)


def test_a_residual_and_relu_access_five_against_three_and_one_in_an_epilogue() -> None:
    # Golden topic 9, fusion-residual-relu.
    b = rl.ops.Builder("residual", "fp32")
    graph = b.graph([b.op("relu", b.op("add", b.input("x", (N,)), b.input("r", (N,))))])
    assert (per_element(graph, "eager"), per_element(graph, "pointwise")) == (5, 3)

    def product(residual: bool) -> float:
        b = rl.ops.Builder("product", "fp32")
        y = b.op("linear", b.input("x", (2**12, 64)), b.weight("w", (2**12, 64)))
        if residual:
            y = b.op("relu", b.op("add", y, b.input("r", (2**12, 2**12))))
        return rl.analysis.fusion(b.graph([y]))["ideal"].accesses

    assert (product(True) - product(False)) / 2**24 == 1


def softmax_in_passes(online: bool) -> rl.Graph:
    """Largest element and sum of exponentials by reductions, then the normalising sweep (arXiv 1805.02867)."""
    b = rl.ops.Builder("softmax", "fp32")
    x = b.input("x", (1, N))
    with b.kernel("first"):
        largest = b.op("reduce", x, axes=(-1,), keepdim=True)
        if online:
            total = b.op("reduce", b.op("exp", b.op("sub", x, largest)), axes=(-1,), keepdim=True)
    if not online:
        with b.kernel("second"):
            total = b.op("reduce", b.op("exp", b.op("sub", x, largest)), axes=(-1,), keepdim=True)
    with b.kernel("last"):
        return b.graph([b.op("div", b.op("exp", b.op("sub", x, largest)), total)])


def test_softmax_accesses_four_three_or_two() -> None:
    # Golden topic 9, softmax-accesses: safe, online, and with the row on the chip.
    safe, online = (rl.analysis.fusion(softmax_in_passes(online)) for online in (False, True))
    on_chip = rl.analysis.fusion(rl.passes.unfuse(softmax_in_passes(False)))["chains"]
    found = [safe["given"].accesses / N, online["given"].accesses / N, on_chip.accesses / N]
    assert found == pytest.approx([4, 3, 2], rel=1e-6)
    assert safe["given"].accesses / online["given"].accesses == pytest.approx(4 / 3, rel=1e-6)


@pytest.mark.parametrize("n", [2048, 8192])
def test_attention_accesses_n_squared_against_n(n: int) -> None:
    found = rl.analysis.fusion(naive_attention(n))
    ends = 4 * 32 * n * 128
    assert found["eager"].accesses == ends + 4 * 32 * n * n
    assert found["flash"].accesses == found["ideal"].accesses == ends
    assert rl.analysis.fusion(naive_attention(2 * n))["flash"].accesses == 2 * ends


def test_flash_tiles_are_the_papers() -> None:
    # Golden topic 7, flash1-io-complexity.
    tiles = flash_tiles(1024, 64, 51200)
    assert (tiles.keys, tiles.queries, tiles.passes) == (200, 64, 16)
    assert (tiles.standard, tiles.flash) == pytest.approx((1114112, 83886.08), rel=1e-6)
    for wrong in ((0, 64, 51200), (1024, 64, 255)):
        with pytest.raises(rl.errors.UsageError, match="flash_tiles"):
            flash_tiles(*wrong)


def test_compiling_pays_after_so_many_iterations() -> None:
    # Golden topic 9, torch-compile-breakeven.
    assert rl.diagnosis.break_even(45.0, 0.012, 0.009).steps == pytest.approx(15000, rel=1e-6)


# --- the access table: what it holds ----------------------------------------------------------------------------------


def test_groups_show_unfused_beside_fused() -> None:
    (group,) = rl.analysis.fusion(chain()).groups()
    assert (group.unfused_accesses, group.accesses) == (10 * N, 2 * N)
    assert (group.unfused_bytes, group.bytes) == (40 * N, 8 * N)
    found = rl.analysis.fusion(rl.model("gpt2", phase="forward"), B=1, S=256)
    for policy in POLICIES:
        groups = found.groups(policy)
        saved = sum(group.count * (group.unfused_bytes - group.bytes) for group in groups)
        assert saved == found.unfused.bytes - found[policy].bytes
        assert all(group.accesses <= group.unfused_accesses for group in groups)


def test_an_estimate_shows_both_numbers() -> None:
    est = rl.estimate(chain(), H100, mode="compiled")
    found = rl.analysis.fusion(est)
    assert found.chip is est.chip
    assert (found["given"].bytes, found.unfused.bytes) == (est.bytes, 40 * N)
    assert found.fused.time_s == pytest.approx(est.time, rel=1e-12)
    assert rl.analysis.fusion(rl.passes.fuse(chain(), "ideal")).unfused.kernels == 5
    product = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="fp32")
    for tf32 in (False, True):
        est = rl.estimate(product, H100, mode="graph", tf32=tf32)
        assert rl.analysis.fusion(est)["given"].time_s == est.time


def test_times_are_those_of_the_estimate_of_each_policy() -> None:
    graph = rl.model("gpt2", phase="forward", layers=2)
    found = rl.analysis.fusion(graph, H100, B=4, S=512)
    for policy in POLICIES:
        est = rl.estimate(rl.passes.fuse(graph, policy), H100, mode="graph", B=4, S=512)
        assert found[policy].spill_bytes == 0
        assert (found[policy].time_s, found[policy].floor_s) == (est.time, est.floor)
        assert (found[policy].kernels, found[policy].bytes) == (est.launches, est.bytes)


@pytest.mark.parametrize(("name", "phase"), [("unet", None), ("resnet50", None), ("gpt2", "forward"), ("t5-base", None),
                                             ("llama-3-8b", "decode"), ("vit-b-16", None)])  # fmt: skip
def test_no_policy_is_predicted_slower_than_eager(name: str, phase: str | None) -> None:
    graph = rl.model(name, phase=phase)
    found = rl.analysis.fusion(graph, H100, **dict.fromkeys(graph.symbols, 128))
    assert all(row.time_s is not None for row in found.rows)
    for row in found.rows:
        assert row.time_s <= found.unfused.time_s  # type: ignore[operator]
        assert found["ideal"].time_s <= row.time_s  # type: ignore[operator]


def test_the_table_comes_as_data() -> None:
    found = rl.analysis.fusion(chain(), H100)
    frame, record = found.frame(), found.record()
    assert list(frame.policy) == ["given", *POLICIES]
    assert json.loads(json.dumps(plain(record)))["rows"][1]["accesses"] == 10 * N
    assert "5 kernels" in repr(found)
    assert "chains 1" in repr(found)


def test_bad_input_is_one_clear_line() -> None:
    graph = rl.model("gpt2", phase="forward", layers=1)
    with pytest.raises(rl.errors.UnboundSize):
        rl.analysis.fusion(graph, B=1)
    with pytest.raises(rl.errors.UsageError, match="one number"):
        rl.analysis.fusion(graph, B=[1, 2], S=16)
    with pytest.raises(rl.errors.UsageError, match=r"'idel'; allowed: .*did you mean ideal"):
        rl.passes.fuse(graph, "idel")
    with pytest.raises(rl.errors.UsageError, match="did you mean chains"):
        rl.analysis.fusion(graph, B=1, S=16)["chain"]
    with pytest.raises(rl.errors.UsageError, match="expected a program"):
        rl.analysis.fusion(7)  # type: ignore[arg-type]
    with pytest.raises(rl.errors.UsageError, match="no kernel 'bodi'; did you mean body"):
        pressure(wide(3), "bodi", H100)
    with pytest.raises(rl.errors.UsageError, match="one point; give batch"):
        rl.analysis.fusion(rl.estimate(graph, H100, B=[1, 2], S=16))


# --- policies ---------------------------------------------------------------------------------------------------------


def labels(graph: rl.Graph, policy: str) -> dict[str, str]:
    return {node.name: node.label for node in rl.passes.fuse(graph, policy).nodes}


def test_policies_stop_where_they_say() -> None:
    graph = mlp()
    assert labels(graph, "pointwise")["act"] == labels(graph, "pointwise")["bias"] != labels(graph, "pointwise")["norm"]
    assert labels(graph, "chains")["norm"] == labels(graph, "chains")["bias"] != labels(graph, "chains")["up"]
    ideal = labels(graph, "ideal")
    assert ideal["up"] == ideal["bias"] == ideal["act"] == ideal["norm"] != ideal["down"]
    assert ideal["down"] == ideal["residual"] == ideal["rows"] == ideal["columns"]
    assert len(set(labels(graph, "eager").values())) == 8


def test_the_bound_takes_a_prologue_where_nothing_comes_before() -> None:
    b = rl.ops.Builder("prologue", "bf16")
    h = b.op("rmsnorm", b.input("x", (64, 512)), b.weight("g", (512,)), name="norm")
    graph = b.graph([b.op("linear", h, b.weight("w", (256, 512)), name="up")])
    assert labels(graph, "ideal")["norm"] == labels(graph, "ideal")["up"]


def test_chains_keep_to_the_rows_of_their_reductions() -> None:
    b = rl.ops.Builder("axes", "fp32")
    x = b.input("x", (64, 128))
    rows = b.op("softmax", x, name="rows")
    turned = b.op("softmax", b.op("permute", rows, axes=(1, 0)), name="turned")
    square = b.op("reduce", rows, axes=(0,), name="columns")
    found = labels(b.graph([turned, square, b.op("relu", rows, name="relu")]), "chains")
    assert found["relu"] == found["rows"]
    assert len({found["rows"], found["turned"], found["columns"]}) == 3


def test_fusing_by_name_is_fusing_by_the_pass() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=2)
    assert rl.passes.fuse(graph).nodes == rl.passes.fuse(graph, "chains").nodes
    assert rl.passes.fuse(graph, "inductor").nodes == rl.passes.inductor(graph).nodes
    assert rl.passes.fuse(graph, "eager").nodes == rl.passes.unfuse(graph).nodes
    assert repr(rl.passes.fuse(graph, "ideal").history[-1]) == "fuse(policy='ideal')"


# --- registers --------------------------------------------------------------------------------------------------------


def wide(values: int, n: int = 2**23, dtype: str = "fp32") -> rl.Graph:
    """A body that wants all of its operands again once it knows their sum."""
    b = rl.ops.Builder("wide", dtype)
    parts = [b.input("p", (n,)) for _ in range(values)]
    with b.kernel("body"):
        total = parts[0]
        for part in parts[1:]:
            total = b.op("add", total, part)
        y = b.op("tanh", total)
        for part in parts:
            y = b.op("add", y, b.op("mul", part, y))
    return b.graph([y])


#: Registers that nvcc 13.0 takes for sm_90 and such a body, by values and elements a thread, nothing spilled: with
#: 255 registers allowed, or 128 where that makes it economise.
COMPILED = [(8, 1, 28), (24, 1, 39), (40, 1, 55), (56, 1, 71), (64, 1, 79), (80, 1, 95), (96, 1, 109), (24, 2, 64),
            (40, 2, 96), (56, 2, 128), (64, 2, 144), (72, 2, 160), (80, 2, 176), (96, 2, 208),
            (24, 4, 122)]  # fmt: skip

#: Such bodies over 2^23 elements on an H100 SXM: values of 4 elements a thread, time [us], and time with 2 [us].
SPILLING = [(64, 764.9, 724.3), (72, 1047.5, 811.6), (80, 1521.8, 894.6)]


@pytest.mark.parametrize(("values", "width", "regs"), COMPILED)
def test_registers_are_those_of_the_compiler(values: int, width: int, regs: int) -> None:
    found = fusing.registers(values, 4, 2**23, width=width)
    assert found.needed == pytest.approx(regs, rel=0.1, abs=7)
    assert found.spilled == 0


def test_registers_are_right_on_average() -> None:
    errors = [fusing.registers(k, 4, 1, width=w).needed / regs - 1 for k, w, regs in COMPILED]
    assert np.mean(np.abs(errors)) < 0.05
    assert abs(np.mean(errors)) < 0.05


@pytest.mark.parametrize(("values", "spilling_us", "narrow_us"), SPILLING)
def test_spilled_registers_cost_what_they_cost(values: int, spilling_us: float, narrow_us: float) -> None:
    chip, found = rl.chip(H100), pressure(wide(values), "body", rl.chip(H100))
    assert found.registers is not None
    assert found.registers.spilled > 0
    assert found.narrower == 2
    extra = found.spill_bytes / (chip.bandwidth * chip.efficiency.memory)
    assert narrow_us + extra * 1e6 == pytest.approx(spilling_us, rel=0.15)


def test_live_values_are_counted_in_the_order_of_the_program() -> None:
    for values in (3, 10, 50):
        found = pressure(wide(values), "body", rl.chip(H100))
        assert found.registers is not None
        assert found.registers.live == values + 1  # all operands and the sum
    (fused,) = {node.label for node in rl.passes.fuse(chain(steps=50)).nodes}
    found = pressure(rl.passes.fuse(chain(steps=50)), fused, rl.chip(H100))
    assert found.registers is not None
    assert (found.registers.live, found.registers.spilled) == (1, 0)  # each step's value replaces the one before


@pytest.mark.parametrize(("dtype", "width", "each"), [("fp32", 4, 4), ("bf16", 8, 8), ("fp64", 2, 4)])
def test_threads_take_what_their_widest_load_brings(dtype: str, width: int, each: int) -> None:
    few, more = (pressure(wide(k, dtype=dtype), "body", rl.chip(H100)).registers for k in (10, 20))
    assert few is not None
    assert more is not None
    assert few.width == width
    assert more.needed - few.needed == 10 * each
    assert few.threads == 2**23 / width


def test_spilling_shows_in_the_table_and_only_there_where_it_happens() -> None:
    found = rl.analysis.fusion(wide(80), H100)
    assert found["eager"].spill_bytes == 0
    row = found["given"]
    assert row.registers is not None
    assert row.registers > 255
    assert row.spill_bytes == 2 * 4 * (row.registers - 255) * 2**21
    est = rl.estimate(wide(80), H100, mode="graph")
    assert row.time_s == pytest.approx(est.time + row.spill_bytes / (3.35e12 * 0.831), rel=1e-9)


def test_few_registers_leave_room_for_many_threads() -> None:
    assert fusing.registers(1, 4, 1).resident == 2**16 // 32 // 18 * 32
    assert fusing.registers(100, 4, 1).resident == 256


def test_chips_without_published_limits_have_no_registers() -> None:
    assert pressure(wide(80), "body", rl.chip("mi300x")).registers is None
    assert rl.analysis.fusion(wide(80), "mi300x")["given"].registers is None


# --- shared memory ----------------------------------------------------------------------------------------------------


def rows_of(columns: int, chip: str, rows: int = 128) -> rl.analysis.Explanation:
    b = rl.ops.Builder("rows", "fp32")
    x, r = b.input("x", (rows, columns)), b.input("r", (rows, columns))
    return rl.analysis.explain_fusion(
        b.graph([b.op("softmax", b.op("add", x, r, name="add"), name="soft")]), "add", "soft", chip
    )


@pytest.mark.parametrize(("chip", "kib"), [("h100-sxm", 228), ("a100-80gb-sxm", 164), ("l40s", 100),
                                           ("v100-sxm-32gb", 96), ("b200-sxm", 228), ("mi300x", 64)])  # fmt: skip
def test_a_row_stays_on_the_chip_up_to_its_shared_memory(chip: str, kib: int) -> None:
    assert fusing.shared_memory(rl.chip(chip)) == kib * 1024
    longest = kib * 1024 // 4
    assert rows_of(longest, chip).hurts == ()
    (hurt,) = rows_of(longest + 1, chip).hurts
    assert hurt.startswith("shared memory: a row takes")
    assert "read again" in hurt


def test_what_is_read_again_is_every_row_that_is_wanted_again() -> None:
    b = rl.ops.Builder("rows", "bf16")
    x = b.input("x", (64, 200_000))
    y = b.op("softmax", x, name="soft")
    graph = rl.passes.fuse(b.graph([b.op("mul", y, x, name="gate")]))
    (label,) = {node.label for node in graph.nodes}
    found = pressure(graph, label, rl.chip(H100))
    assert found.rows is not None
    assert (found.rows.row_bytes, found.rows.held) == (200_000 * 4, 0)
    assert found.again_bytes == 2 * 64 * 200_000


# --- computing again --------------------------------------------------------------------------------------------------


def shared_producer(flops: int, readers: int = 3, n: int = 10**7) -> rl.Graph:
    b = rl.ops.Builder("shared", "fp32")
    h = b.op("elementwise", b.input("x", (n,)), name="h", flops=flops)
    return b.graph([b.op("relu", h, name=f"reader{at}") for at in range(readers)])


A100_FP32 = rl.Chip(name="a100 fp32", vector={"fp32": "19.5 TFLOP/s"}, memory_bandwidth="1.5 TB/s")


def test_recomputing_in_each_reader_is_the_published_example() -> None:
    # Golden topic 9, fusion-hurts-recompute.
    found = store_or_recompute(shared_producer(200), "h", A100_FP32)
    assert found.readers == 3
    assert found.store_s == pytest.approx(0.0002625641026, rel=1e-6)
    assert found.recompute_s == pytest.approx(0.0003076923077, rel=1e-6)
    assert not found.recompute


@pytest.mark.parametrize("readers", [2, 3, 5])
def test_the_sign_flips_at_the_break_even(readers: int) -> None:
    # c f / P = f / P + c 2 b / W, so f = c / (c - 1) of the 104 operations that a read and a write are worth.
    even = readers / (readers - 1) * 2 * 4 * 19.5e12 / 1.5e12
    below, above = (store_or_recompute(shared_producer(int(even) + by, readers), "h", A100_FP32) for by in (-1, 2))
    assert below.recompute
    assert not above.recompute


def test_inlining_reads_the_inputs_and_computes_once_a_reader() -> None:
    graph = shared_producer(10)
    before, after = rl.count(graph), rl.count(inline(graph, "h"))
    assert (before.launches, after.launches) == (4, 3)
    assert after.vector_flops == 3 * before.vector_flops
    assert before.bytes - after.bytes == 2 * 4 * 10**7


def test_inlining_goes_through_views_and_keeps_outputs() -> None:
    b = rl.ops.Builder("views", "fp32")
    h = b.op("exp", b.input("x", (64, 64)), name="h")
    flat = b.op("view", h, name="flat", shape=(4096,))
    graph = b.graph([b.op("relu", flat, name="a"), b.op("tanh", h, name="b"), h])
    inlined = inline(graph, "h")
    assert inlined.outputs == graph.outputs
    assert rl.count(inlined).vector_flops == 3 * 4096 + 4096  # h itself, a copy for a and for b, and tanh
    assert rl.count(inlined).bytes == 3 * 2 * 4 * 4096


@pytest.mark.parametrize(("node", "words"), [("g", "no node 'g'"), ("reader0", "nothing reads 'reader0'")])
def test_only_what_is_read_can_be_inlined(node: str, words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words):
        inline(shared_producer(1), node)


def test_loops_of_another_length_cannot_compute_it() -> None:
    b = rl.ops.Builder("loops", "fp32")
    h = b.op("exp", b.input("x", (64,)), name="h")
    with pytest.raises(rl.errors.UsageError, match="equally often"):
        inline(b.graph([b.op("relu", h, count=3)]), "h")


# --- why, and why not -------------------------------------------------------------------------------------------------


def explain(first: str, second: str, **sizes: Any) -> rl.analysis.Explanation:
    return rl.analysis.explain_fusion(mlp(**sizes), first, second, H100)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("up", "act", "bias must run after up and before act"),
        ("act", "down", "norm must run after act and before down"),
        ("up", "norm", "must run after up and before norm"),
        ("norm", "down", "each of 16 or more column tiles would compute norm again"),
        ("rows", "columns", "reduce over different axes: rows keeps 8,192 and reduces 4,096"),
    ],
)
def test_what_cannot_be_one_kernel_says_why(first: str, second: str, words: str) -> None:
    found = explain(first, second)
    assert not found.fusible
    assert found.saves_s is None
    assert words in found.reasons[0]
    assert "cannot be one kernel" in str(found)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("up", "bias", "cuBLASLt has bias_add as an epilogue"),
        ("down", "residual", "beta C"),
        ("bias", "act", "one loop over 134,217,728 elements; they pass on bias"),
        ("act", "norm", "they pass on act"),
        ("residual", "rows", "they pass on residual"),
    ],
)
def test_what_can_be_one_kernel_says_how(first: str, second: str, words: str) -> None:
    found = explain(first, second)
    assert found.fusible
    assert words in found.reasons[0]
    assert found.saves_bytes > 0
    assert found.saves_s is not None
    assert found.saves_s > 0


@pytest.mark.parametrize(
    ("chip", "words"),
    [
        ("mi300x", "up is a rocBLAS kernel, which takes no other code; hipBLASLt has bias_add as an epilogue"),
        (
            "tpu-v5e",
            "up is a library kernel, which takes no other code; a compiled epilogue does bias_add on its tiles",
        ),
    ],
)
def test_libraries_are_those_of_the_vendor(chip: str, words: str) -> None:
    assert rl.analysis.explain_fusion(mlp(), "up", "bias", chip).reasons[0] == words


def test_a_convolution_takes_what_follows_it_in_its_own_library() -> None:
    b = rl.ops.Builder("conv", "bf16")
    h = b.op("conv2d", b.input("x", (8, 64, 56, 56)), b.weight("w", (128, 64, 3, 3)), name="conv", padding=1)
    graph = b.graph([b.op("relu", h, name="act")])
    found = rl.analysis.explain_fusion(graph, "conv", "act", H100)
    assert found.fusible
    assert "conv is a cuDNN kernel, which takes no other code; cuDNN's runtime fusion does relu" in found.reasons[0]
    assert found.saves_bytes == 2 * 2 * 8 * 128 * 56 * 56


def test_saved_bytes_are_those_of_the_tensor_between() -> None:
    found = explain("bias", "act")
    assert found.saves_bytes == 2 * 2 * 8192 * 16384
    assert found.before_bytes - found.after_bytes == found.saves_bytes
    assert found.policies == ("pointwise", "chains", "inductor")
    assert found.together == ("bias", "act")


def test_the_order_of_the_names_does_not_matter() -> None:
    assert explain("act", "bias") == explain("bias", "act")


def test_saved_bytes_gain_nothing_where_arithmetic_sets_the_pace() -> None:
    big, small = explain("up", "bias"), explain("up", "bias", tokens=16)
    assert any("is compute-bound" in text for text in big.reasons)
    assert not any("is compute-bound" in text for text in small.reasons)
    # The matmul's own time does not change: what is saved is the bias kernel.
    alone = rl.estimate(mlp(), H100, mode="graph").kernels().set_index("kernel").time_s
    assert big.saves_s == pytest.approx(alone["bias"], rel=0.1)


def test_rows_of_a_product_must_lie_in_one_tile() -> None:
    def after_product(columns: int) -> rl.analysis.Explanation:
        b = rl.ops.Builder("product", "bf16")
        h = b.op("linear", b.input("x", (1024, 512)), b.weight("w", (columns, 512)), name="up")
        return rl.analysis.explain_fusion(b.graph([b.op("softmax", h, name="soft")]), "up", "soft", H100)

    assert after_product(256).fusible
    found = after_product(4096)
    assert not found.fusible
    assert "whole rows of 4,096, which lie in 16 or more tiles" in found.reasons[0]


def test_attention_is_found_from_any_two_of_its_kernels() -> None:
    graph = naive_attention(2048)
    for pair in (("scores", "values"), ("scores", "softmax"), ("softmax", "values")):
        found = rl.analysis.explain_fusion(graph, *pair, H100)
        assert found.fusible
        assert found.together == ("scores", "softmax", "values")
        assert found.saves_bytes == 2 * 4 * 32 * 2048 * 2048
        assert found.policies == ("flash",)


def test_other_loops_cannot_be_one() -> None:
    b = rl.ops.Builder("sizes", "fp32")
    x = b.input("x", (64, 128))
    half = b.op("exp", b.op("slice", b.op("softmax", x, name="whole"), shape=(64, 64)), name="half")
    twice = b.op("tanh", half, name="twice", count=2)
    other = b.op("sqrt", b.input("y", (64, 64)), name="other")
    graph = b.graph([twice, other])
    assert "walks 8,192 elements and half 4,096" in rl.analysis.explain_fusion(graph, "whole", "half").reasons[0]
    assert "half runs once, twice 2 times" in rl.analysis.explain_fusion(graph, "half", "twice").reasons[0]
    assert "no tensor in common" in rl.analysis.explain_fusion(graph, "half", "other").reasons[0]


def test_a_turned_result_suits_pointwise_loops_only() -> None:
    def turned(op: str) -> rl.analysis.Explanation:
        b = rl.ops.Builder("turned", "fp32")
        h = b.op("permute", b.op("relu", b.input("x", (64, 64)), name="a"), axes=(1, 0))
        return rl.analysis.explain_fusion(b.graph([b.op(op, h, name="b")]), "a", "b")

    assert turned("exp").fusible
    assert "with its axes permuted" in turned("exp").reasons[0]
    assert turned("softmax").reasons == ("policy inductor makes one kernel of them",)


def test_several_readers_are_told_of() -> None:
    found = rl.analysis.explain_fusion(shared_producer(200), "h", "reader0", A100_FP32)
    assert found.fusible
    assert found.saves_bytes == 4 * 10**7  # one read; the others still want it written
    (hurt,) = found.hurts
    assert hurt.startswith(
        "recomputation: h is read by 3 kernels: recomputing it in each costs more, 308 us against 263 us"
    )
    cheap = rl.analysis.explain_fusion(shared_producer(1), "h", "reader0", A100_FP32)
    assert cheap.hurts == ()
    assert "recomputing it in each is cheaper" in cheap.reasons[-1]


def test_kernels_bound_by_their_launches_gain_a_launch() -> None:
    def pair(n: int) -> rl.analysis.Explanation:
        b = rl.ops.Builder("small", "fp32")
        return rl.analysis.explain_fusion(
            b.graph([b.op("exp", b.op("relu", b.input("x", (n,)), name="a"), name="b")]), "a", "b", H100
        )

    assert "launch-bound" in pair(1000).reasons[-1]
    assert "launch-bound" not in pair(10**8).reasons[-1]


def test_registers_hurt_a_wide_pair() -> None:
    b = rl.ops.Builder("wide", "fp32")
    parts = [b.input("p", (2**20,)) for _ in range(80)]
    with b.kernel("left"):
        total = parts[0]
        for part in parts[1:]:
            total = b.op("add", total, part)
    with b.kernel("right"):
        y = total
        for part in parts:
            y = b.op("mul", y, part)
    found = rl.analysis.explain_fusion(b.graph([y]), "left", "right", H100)
    assert found.fusible
    (hurt,) = found.hurts
    assert hurt.startswith("registers: 81 live values x 4 elements take 338 of 255 per thread")
    assert "2 elements per thread would fit" in hurt
    assert found.saves_bytes == 4 * 2**20 * (80 + 2) - 2 * 4 * (338 - 255) * 2**18


def test_nodes_of_one_kernel_are_already_one() -> None:
    graph = rl.passes.fuse(mlp())
    found = rl.analysis.explain_fusion(graph, "bias", "norm", H100)
    assert found.fusible
    assert "in one kernel already" in found.reasons[0]
    assert found.saves_bytes == 2 * 2 * 2 * 8192 * 16384


def test_names_that_are_no_kernels_are_refused() -> None:
    graph = mlp()
    with pytest.raises(rl.errors.UsageError, match="no kernel or node 'biass'; did you mean bias"):
        rl.analysis.explain_fusion(graph, "up", "biass")
    b = rl.ops.Builder("view", "fp32")
    b.op("relu", b.op("view", b.input("x", (4, 4)), shape=(16,), name="flat"), name="relu")
    with pytest.raises(rl.errors.UsageError, match="is a view"):
        rl.analysis.explain_fusion(b.graph(["relu"]), "flat", "relu")


def test_it_is_printed_in_a_few_lines_and_as_data() -> None:
    found = explain("up", "bias")
    assert 3 <= len(str(found).splitlines()) <= 6
    (record,) = json.loads(json.dumps(found.record()))["rows"]
    assert record["saves_bytes"] == found.saves_bytes
    assert record["fusible"] is True


def test_sizes_are_given_like_everywhere() -> None:
    b = rl.ops.Builder("symbolic", "fp32")
    h = b.op("relu", b.input("x", (rl.ops.symbol("B"), 64)), name="a")
    graph = b.graph([b.op("exp", h, name="b")])
    assert rl.analysis.explain_fusion(graph, "a", "b", B=8).saves_bytes == 2 * 4 * 8 * 64
    with pytest.raises(rl.errors.UnboundSize):
        rl.analysis.explain_fusion(graph, "a", "b")
    assert isinstance(rl.analysis.fusion(graph, B=8), rl.analysis.Fusion)


# --- docs/fusion.md ---------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "fusion.md").read_text(encoding="utf-8")


def scaled_attention(n: int) -> rl.Graph:
    sizes = {"batch": 1, "heads": 32, "q_len": n, "kv_len": n, "head_dim": 128}
    return rl.workload([{"op": "attention_naive", **sizes}], dtype="bf16")


@pytest.mark.parametrize(
    ("program", "graph"),
    [
        ("five pointwise operators", chain()),
        ("attention, 2,048 positions", scaled_attention(2048)),
        ("attention, 8,192 positions", scaled_attention(8192)),
    ],
)
def test_the_page_shows_what_the_table_says(program: str, graph: rl.Graph) -> None:
    found = rl.analysis.fusion(graph, H100)
    lines = PAGE.split(f"| {program} |", 1)[1].splitlines()
    more = itertools.takewhile(lambda line: line.startswith("| |"), lines[1:])
    rows = [lines[0], *(line.removeprefix("| |") for line in more)]
    assert len(rows) >= 2
    for row in rows:
        policies, *cells = (cell.strip() for cell in row.strip("| ").split("|"))
        for policy in policies.split(", "):
            ours = found[policy]
            assert ours.time_s is not None
            assert int(cells[0]) == ours.kernels
            assert cells[1].split(" (")[0] == format_si(ours.accesses, "")
            assert cells[2:] == [format_si(ours.bytes, "B"), format_si(ours.time_s, "s")]
