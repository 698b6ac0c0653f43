"""Bug reports and questions from other projects' trackers, answered by the public interface.

Each test names the thread that it comes from. Figures are the thread's, or those that follow from its shapes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import roofline as rl
from roofline.counting.memory import memory
from roofline.ir.units import MAC, format_bytes, format_si, parse

GIB = parse("1 GiB", "B")


def one(op: str, dtype: str = "fp16", **sizes: Any) -> rl.Graph:
    return rl.workload([{"op": op, **sizes}], dtype=dtype)


def rows(graph: rl.Graph, **sizes: int) -> dict[str, Any]:
    """Counted kernels by the name of each occurrence."""
    return {name: row for row in rl.count(graph, **sizes).rows for name in row.kernel.names}


def kv_bytes(graph: rl.Graph, batch: int = 1, context: int = 1) -> float:
    return memory(graph, {"B": batch, "C": context}).kv_cache


def at_rate(graph: rl.Graph, chip: str, tflops: float) -> str:
    """The verdict on a kernel that is said to have run at so many TFLOP/s."""
    return rl.check(graph, chip, rl.count(graph).flops / (tflops * 1e12)).verdict


# --- attention: what is read, written and computed ----------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_decode_reads_the_cache_by_kv_heads(batch: int) -> None:
    # A01: https://github.com/hahnyuan/LLM-Viewer/issues/12
    def read(context: int, heads: int) -> float:
        sizes = {
            "batch": batch,
            "heads": heads,
            "kv_heads": 8,
            "q_len": 1,
            "kv_len": context,
            "head_dim": 128,
        }
        return rows(one("attention", **sizes))["sdpa"].read

    assert read(8192, 64) - read(4096, 64) == batch * 16_777_216
    assert read(8192, 8) - read(4096, 8) == batch * 16_777_216


def test_fused_attention_moves_no_scores() -> None:
    # A02: https://github.com/hahnyuan/LLM-Viewer/issues/26
    def attention(seq: int) -> rl.Graph:
        return one("attention", batch=1, heads=32, q_len=seq, kv_len=seq, head_dim=128)

    fused, unfused = rl.count(attention(4096)), rl.count(rl.passes.unfuse(attention(4096)))
    assert rows(attention(4096))["sdpa"].write == 33_554_432
    assert fused.bytes == 134_217_728
    assert unfused.bytes - fused.bytes == 4_294_967_296
    assert unfused.bytes / fused.bytes == 33
    assert rl.count(attention(8192)).bytes == 2 * fused.bytes


@pytest.mark.parametrize("op", ["attention", "attention_naive"])
def test_attention_flops_do_not_depend_on_the_kernel(op: str) -> None:
    # A03: https://github.com/pytorch/pytorch/issues/195460
    sizes = {"batch": 1, "heads": 12, "q_len": 64, "kv_len": 64, "head_dim": 64}
    assert rl.count(one(op, **sizes)).flops == 12_582_912


def test_an_unknown_operator_is_never_a_silent_zero() -> None:
    # A03, A30: https://github.com/ThanatosShinji/onnx-tool/issues/45
    b = rl.ops.Builder("quantise", "fp16")
    x = b.input("x", (4,))
    with pytest.raises(rl.errors.UnknownOp, match="DynamicQuantizeLinear"):
        b.op("DynamicQuantizeLinear", x)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq", "width", "flops"),
    [(32, 8, 1024, 128, 17_179_869_184), (8, 2, 256, 64, 134_217_728)],
)
def test_attention_flops_follow_query_heads(heads: int, kv_heads: int, seq: int, width: int, flops: int) -> None:
    # A04: https://github.com/pytorch/pytorch/pull/177188
    sizes = {"batch": 1, "q_len": seq, "kv_len": seq, "head_dim": width}
    assert rl.count(one("attention", heads=heads, kv_heads=kv_heads, **sizes)).flops == flops
    assert rl.count(one("attention", heads=heads, **sizes)).flops == flops


def test_only_head_counts_that_do_not_divide_are_refused() -> None:
    # A04: https://github.com/pytorch/pytorch/pull/177188
    with pytest.raises(rl.errors.ShapeError, match=r"32.*5"):
        one("attention", batch=1, heads=32, kv_heads=5, q_len=64, kv_len=64, head_dim=64)


def test_windows_cap_attention_and_grouped_heads_do_not() -> None:
    # A06: https://github.com/allenai/OLMo-core/pull/479
    def flops_a_token(**more: int) -> float:
        sizes = {"batch": 1, "heads": 32, "q_len": 4096, "kv_len": 4096, "head_dim": 128}
        return rl.count(one("attention", **sizes, **more)).flops / sizes["q_len"]

    def kv_projection(kv_heads: int) -> int:
        sizes = {"hidden": 4096, "heads": 32, "layers": 1}
        graph = rl.model("llama-3-8b", fused_qkv=False, kv_heads=kv_heads, **sizes)
        return sum(graph.tensors[f"layers.0.attn.{name}.weight"].numel for name in ("k", "v"))

    assert flops_a_token(kv_heads=8) == flops_a_token() == 67_108_864
    assert flops_a_token(kv_heads=8, window=1024) == 16_777_216
    assert (kv_projection(8), kv_projection(32)) == (8_388_608, 33_554_432)


def test_heads_do_not_change_matmul_flops_but_score_bytes() -> None:
    # A12: https://github.com/facebookresearch/fvcore/issues/153
    def block(heads: int) -> rl.Graph:
        sizes = {"q_len": 300, "kv_len": 300, "head_dim": 448 // heads}
        projection = {"op": "gemm", "m": 300, "n": 448, "k": 448, "count": 4}
        return rl.workload([projection, {"op": "attention_naive", "batch": 1, "heads": heads, **sizes}])

    four, eight = rl.count(block(4)), rl.count(block(8))
    assert four.flops == eight.flops == 642_969_600
    assert rows(block(4))["0.gemm.gemm"].flops * 4 == 481_689_600
    assert eight.vector_flops == 2 * four.vector_flops
    assert rows(block(8))["1.attention_naive.scores"].write == 2 * rows(block(4))["1.attention_naive.scores"].write


# --- counting models ----------------------------------------------------------------------------------------


def test_counting_again_gives_the_same_and_leaves_no_trace() -> None:
    # A08: https://github.com/deepspeedai/DeepSpeed/issues/2292
    graph = rl.model("resnet18")
    nodes, tensors = graph.nodes, dict(graph.tensors)
    counted = [rl.count(graph, B=2) for _ in range(3)]
    assert len({(c.flops, c.vector_flops, c.bytes, c.launches) for c in counted}) == 1
    assert (graph.nodes, dict(graph.tensors)) == (nodes, tensors)


@pytest.mark.parametrize(
    ("name", "macs", "rtol"),
    [
        # A09: https://github.com/TylerYep/torchinfo/issues/226
        ("vit-b-16", 17_563_828_224, 1e-9),
        # A10: https://github.com/TylerYep/torchinfo/issues/39
        ("resnet18", 1_814_073_344, 1e-9),
        # A11: https://github.com/facebookresearch/fvcore/issues/69
        ("resnet50", 4_089_184_256, 1e-9),
    ],
)
def test_multiply_adds_are_two_flops(name: str, macs: int, rtol: float) -> None:
    assert rl.count(rl.model(name), B=1).flops == pytest.approx(MAC * macs, rel=rtol)


@pytest.mark.parametrize(("shape", "macs"), [((5, 10, 3), 1200), ((5, 100, 100, 3), 1_200_000)])
def test_linear_counts_every_leading_axis(shape: tuple[int, ...], macs: int) -> None:
    # A10: https://github.com/TylerYep/torchinfo/issues/39 (thread 77 beside it)
    b = rl.ops.Builder("linear", "fp32")
    y = b.op("linear", b.input("x", shape), b.weight("w", (8, 3)))
    assert rl.count(b.graph([y])).flops == MAC * macs


def test_experts_total_for_memory_and_active_for_flops() -> None:
    # A14: https://github.com/AI-Hypercomputer/maxtext/pull/678
    graph = rl.model("mixtral-8x7b", phase="decode", dtype="bf16")
    matmuls = [row for row in rl.count(graph, B=1, C=1).rows if row.kernel.kind == "matmul"]
    assert graph.parameters == 46_702_792_704
    assert graph.info.active_parameters == 12_879_925_248
    assert sum(row.kernel.count * row.flops for row in matmuls) == 25_497_174_016
    assert memory(graph, {"B": 1, "C": 1}).weights == 93_405_585_408


def test_tying_changes_parameters_and_nothing_else() -> None:
    # A15: https://github.com/huggingface/trl/issues/6708
    tied, untied = (rl.model("qwen3-0.6b", phase="decode", tied=tied) for tied in (True, False))
    sizes = {"B": 1, "C": 16}
    assert rl.count(tied, **sizes).flops == rl.count(untied, **sizes).flops
    assert rl.count(tied, **sizes).bytes == rl.count(untied, **sizes).bytes
    assert rows(tied, **sizes)["head"].flops == 311_164_928
    assert rows(tied, **sizes)["embed"].flops == 0
    assert untied.parameters - tied.parameters == 155_582_464


def test_every_unbound_size_is_named_at_once() -> None:
    # A30: https://github.com/ThanatosShinji/onnx-tool/issues/45
    graph = rl.model("llama-3-8b", phase="decode", layers=1)
    with pytest.raises(rl.errors.UnboundSize, match=r"batch \(B\), context \(C\)"):
        rl.count(graph)
    with pytest.raises(rl.errors.UnboundSize, match=r"batch \(B\), context \(C\)"):
        rl.estimate(graph, "h100-sxm")
    assert rl.count(graph, B=2, C=8).flops > 0


# --- peaks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chip", "achieved", "mfu"), [("h200-sxm", 420, 0.4245), ("h100-sxm", 480, 0.48514)])
def test_peaks_are_dense(chip: str, achieved: float, mfu: float) -> None:
    # A16: https://github.com/foundation-model-stack/fms-fsdp/issues/89
    assert achieved * 1e12 / rl.chip(chip).matmul_peak("bf16") == pytest.approx(mfu, rel=0.002)
    assert rl.chip(chip).matrix["bf16"].sparse == pytest.approx(2 * rl.chip(chip).peak("bf16"), rel=0.001)


def test_form_factors_differ() -> None:
    # A16: https://github.com/foundation-model-stack/fms-fsdp/issues/89
    assert rl.chip("h100-pcie").matmul_peak("bf16") == pytest.approx(756.5e12, rel=0.001)


@pytest.mark.parametrize("chip", ["a100-40gb-sxm", "a100-80gb-sxm", "a100-40gb-pcie", "a100-80gb-pcie"])
def test_a_dense_figure_is_not_halved_again(chip: str) -> None:
    # A17: https://github.com/allenai/OLMo-core/pull/614
    assert 140e12 / rl.chip(chip).matmul_peak("bf16") == pytest.approx(0.448718, rel=1e-4)


# --- memory -------------------------------------------------------------------------------------------------


def test_weights_take_the_format_that_was_asked_for() -> None:
    # A19: https://github.com/huggingface/accelerate/issues/3379
    graph = rl.model("llama-3-70b", dtype="fp16")
    weights = memory(graph, {"B": 1, "S": 1}).weights
    assert graph.info.dtype == "bf16"
    assert graph.parameters == 70_553_706_496
    assert weights / 1e9 == pytest.approx(141.107412992, rel=1e-6)
    assert weights / GIB == pytest.approx(131.41651916503906, rel=1e-6)
    assert (format_si(weights, "B"), format_bytes(weights)) == ("141 GB", "131.42 GiB")


def test_sliding_layers_by_both_cache_policies() -> None:
    # A20: https://github.com/alvarobartt/hf-mem/issues/60
    large = rl.model("gpt-oss-120b", phase="decode", kv_policy="full")
    assert kv_bytes(large) == 73_728
    assert 5.38 * GIB / kv_bytes(large) == pytest.approx(78_352, rel=0.002)
    small = {p: rl.model("gpt-oss-20b", phase="decode", kv_policy=p) for p in ("full", "windowed")}
    assert kv_bytes(small["full"], 32, 8192) / GIB == 12.0
    assert kv_bytes(small["windowed"], 32, 8192) / GIB == 6.09375


def test_a_declared_head_width_wins() -> None:
    # A22: https://github.com/NVIDIA/Model-Optimizer/issues/2482
    mistral = {"name": "mistral-small-24b", "phase": "decode", "dtype": "bf16"}
    derived = kv_bytes(rl.model(**mistral, head_dim=5120 // 32))
    assert derived / kv_bytes(rl.model(**mistral)) == 1.25
    cache = rl.model("gpt-oss-20b", phase="decode").tensors["layers.0.attn.k_cache"]
    assert cache.shape[-1] == 64
    with pytest.raises(rl.errors.UsageError, match="not whole"):
        rl.model("llama-2-7b", hidden=4100)


def test_a_cache_budget_keeps_graph_and_activation_memory() -> None:
    # A34: https://github.com/vllm-project/vllm/issues/27951
    def budget(*taken: float) -> float:
        each = GIB / 64
        b = rl.ops.Builder("serving", "int8")
        read = [
            b.op("sum", b.weight("w", (1, int(8.58 * GIB)))),
            b.op("sum", b.cache("kv", (rl.ops.symbol("B"), int(each)))),
        ]
        chip = rl.Chip(name="b200", memory_bandwidth="8 TB/s", memory_capacity="178.36 GiB")
        chosen = rl.best_batch(
            b.graph(read), chip, memory_limit=0.9 * chip.capacity, reserve=sum(taken) * GIB, mode="graph"
        )
        return chosen.largest * each / GIB

    assert budget(9.96, 0.07, 0.65) == pytest.approx(141.264, rel=0.001)
    assert budget(9.96, 0.07) - budget(9.96, 0.07, 0.65) == pytest.approx(0.65, abs=0.02)


def test_leftover_latent_sizes_do_not_switch_latent_attention_on() -> None:
    # A35: https://github.com/THUDM/slime/pull/1980
    graph = rl.model("llama-3-8b", phase="decode", layers=1, mla=False, kv_lora=32, rope_dim=64, value_dim=128)
    assert kv_bytes(graph) == 4096


# --- edges and impossible numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("measured", [0.0, -1.0, "0 ms", float("nan")])
def test_a_measured_time_is_above_zero(measured: Any) -> None:
    # A24: https://github.com/karpathy/nanoGPT/pull/446
    with pytest.raises((rl.errors.UsageError, rl.errors.UnitError), match=r"above zero|finite|nan"):
        rl.check(one("relu", n=64), "h100-sxm", measured)


@pytest.mark.parametrize("sizes", [{"B": 0, "C": 1}, {"B": 1, "C": 0}])
def test_sizes_start_at_one(sizes: dict[str, int]) -> None:
    # A24: https://github.com/karpathy/nanoGPT/pull/446
    with pytest.raises(rl.errors.UsageError, match=r"=0: sizes are whole numbers from 1"):
        rl.estimate(rl.model("llama-3-8b", phase="decode", layers=1), "h100-sxm", **sizes)
    with pytest.raises(rl.errors.UsageError, match="heads"):
        rl.model("llama-3-8b", heads=0)


def test_a_program_without_contractions_has_no_nan() -> None:
    # A24: https://github.com/karpathy/nanoGPT/pull/446
    b = rl.ops.Builder("relu", "bf16")
    y = b.op("relu", b.op("identity", b.input("x", (2**26,))))
    est = rl.estimate(b.graph([y]), "h100-sxm", mode="graph")
    assert (est.flops, est.intensity, est.mfu, est.bound) == (0, 0, 0, "memory")
    assert 0 < est.mbu <= 1


def test_operands_are_moved_once() -> None:
    # A27: https://github.com/ggml-org/llama.cpp/issues/8898
    graph = one("gemm", m=4096, n=4096, k=4096)
    assert rl.count(graph).bytes == 100_663_296
    assert rl.count(graph).intensity == pytest.approx(1365.3333333, rel=1e-6)
    assert at_rate(graph, "rtx-3090", 148) == "impossible"


@pytest.mark.parametrize(
    ("dtype", "tops", "impossible"),
    [
        ("fp16", 240, False),
        ("int8", 430, False),
        ("int4", 800, False),
        ("b1", 2100, False),
        ("fp16", 430, True),
    ],
)
def test_faster_than_peak_means_the_format_s_own_peak(dtype: str, tops: float, impossible: bool) -> None:
    # A28: https://github.com/NVIDIA/cutlass/issues/136
    graph = one("gemm", dtype, m=8192, n=8192, k=8192)
    assert (at_rate(graph, "a100-40gb-sxm", tops) == "impossible") is impossible


# --- does my time make sense? -------------------------------------------------------------------------------


def llama_7b(**formats: str) -> rl.Graph:
    return rl.model("llama-2-7b", phase="decode", dtype="fp16", **formats)


@pytest.mark.parametrize(
    ("weights", "measured", "floor_ms", "verdict"),
    [("fp16", "32.89 ms", 14.3983, "slow"), ("int8", "154.55 ms", 7.1992, "very_slow")],
)
def test_int8_decode_that_is_slower(weights: str, measured: str, floor_ms: float, verdict: str) -> None:
    # B03: https://github.com/bitsandbytes-foundation/bitsandbytes/issues/347
    # The thread's floor reads all parameters; a decode step reads no embedding table but some cache.
    # Mode graph: the question is what the device can do; in eager mode the host alone takes the fp16 time.
    answer = rl.check(llama_7b(weights=weights), "rtx-3090", measured, mode="graph", B=1, C=128)
    assert rl.check(llama_7b(weights=weights), "rtx-3090", measured, B=1, C=128).lower_bound < answer.measured
    assert answer.verdict == verdict
    assert answer.estimate.floor * 1e3 == pytest.approx(floor_ms, rel=0.03)
    assert answer.causes


@pytest.mark.parametrize(("rate", "verdict"), [(65, "as_expected"), (150, "impossible")])
def test_decode_near_and_beyond_the_bandwidth(rate: float, verdict: str) -> None:
    # B04: https://github.com/meta-pytorch/gpt-fast/issues/27
    answer = rl.check(llama_7b(), "rtx-4090", 1 / rate, mode="graph", B=1, C=128)
    assert answer.verdict == verdict
    assert answer.estimate.bound == "memory"
    assert 1 / answer.estimate.floor == pytest.approx(74.795, rel=0.03)


def test_experts_that_are_not_read_cost_nothing() -> None:
    # B05: https://github.com/meta-pytorch/gpt-fast/issues/225; two chips as one of twice the bandwidth
    pair = rl.chip("a100-80gb-sxm").scale(bandwidth=2, compute=2, capacity=2)
    answer = rl.check(rl.model("mixtral-8x7b", phase="decode", dtype="bf16"), pair, 1 / 96, mode="graph", B=1, C=128)
    assert answer.verdict == "as_expected"
    assert answer.estimate.floor * 1e3 == pytest.approx(6.3168, rel=0.03)


@pytest.mark.parametrize("chip", ["v100-sxm-16gb", "v100-sxm-32gb", "t4"])
def test_bf16_without_a_bf16_unit_runs_at_the_fp32_rate(chip: str) -> None:
    # B10: https://github.com/lablup/mlxcel/issues/1654
    card = rl.chip(chip)
    assert card.matmul_peak("bf16") <= card.matmul_peak("fp32") < card.matmul_peak("fp16")
    assert "emulated" in card.matmul_runs_as("bf16")
    with pytest.raises(rl.errors.MissingFigure):
        card.peak("bf16")


def test_shares_of_a_v100() -> None:
    # B10: https://github.com/lablup/mlxcel/issues/1654
    card = rl.chip("v100-sxm-16gb")
    assert 14.0e12 / card.matmul_peak("fp32") == pytest.approx(0.8917, rel=0.001)
    assert 97.5e12 / card.matmul_peak("fp16") == pytest.approx(0.78, rel=0.001)


@pytest.mark.parametrize(
    ("m", "measured", "verdict"), [(1, "81.585 us", "as_expected"), (2, "1887.83 us", "very_slow")]
)
def test_a_second_row_should_be_free(m: int, measured: str, verdict: str) -> None:
    # B11: https://github.com/pytorch/pytorch/issues/195716
    # A GTX 1650 has no matrix unit.
    card = rl.Chip(name="gtx-1650", vector={"fp16": "6 TFLOP/s"}, memory_bandwidth="128 GB/s")
    answer = rl.check(one("gemm", m=m, n=4864, k=896), card, measured)
    assert answer.verdict == verdict
    assert answer.estimate.floor * 1e6 == pytest.approx(68.096, rel=0.01)


@pytest.mark.parametrize(
    ("tf32", "measured", "floor_ms", "lever"),
    [
        (False, "110 ms", 110.127, "allow tf32"),
        (True, "16 ms", 13.766, "everything in bf16"),
    ],
)
def test_fp32_matmuls_have_two_peaks(tf32: bool, measured: str, floor_ms: float, lever: str) -> None:
    # B12: https://github.com/huggingface/transformers/issues/16588
    graph = one("gemm", "fp32", m=10240, n=10240, k=10240)
    answer = rl.check(graph, "a100-40gb-sxm", measured, tf32=tf32)
    assert answer.verdict == "as_expected"
    assert answer.estimate.bound == "compute"
    assert answer.estimate.floor * 1e3 == pytest.approx(floor_ms, rel=1e-4)
    assert any(lever in advice.change for advice in answer.advice)


def test_tf32_times_are_impossible_without_tf32() -> None:
    # B12: https://github.com/huggingface/transformers/issues/16588
    answer = rl.check(one("gemm", "fp32", m=10240, n=10240, k=10240), "a100-40gb-sxm", "16 ms")
    assert (answer.verdict, answer.advice) == ("impossible", ())


@pytest.mark.parametrize(
    ("tflops", "impossible"), [(143.2, False), (92.6, False), (223.0, True), (475.2, True), (524.1, True)]
)
def test_unsynchronised_attention_timings(tflops: float, impossible: bool) -> None:
    # B14: https://github.com/Dao-AILab/flash-attention/issues/477
    graph = one("attention", batch=4, heads=32, q_len=4096, kv_len=4096, head_dim=128)
    answer = rl.check(graph, "rtx-4090", rl.count(graph).flops / (tflops * 1e12))
    assert (answer.verdict == "impossible") is impossible
    assert not (impossible and answer.advice)
    assert ("synchronise" in answer.reason) is impossible


def test_an_epoch_faster_than_fp32_allows() -> None:
    # B16: https://forums.fast.ai/t/why-dont-larger-batch-sizes-train-faster/70417
    def epoch(dtype: str) -> rl.Graph:
        """Three times the forward pass of 10,000 images."""
        size = {"op": "conv2d", "n": 1, "h": 224, "w": 224, "r": 3, "s": 3, "padding": 1, "count": 30_000}
        channels = [1, 96, 96, 96, 96, 1]
        pairs = pairwise(channels)
        return rl.workload([{**size, "c_in": c_in, "c_out": c_out} for c_in, c_out in pairs], dtype=dtype)

    assert rl.count(epoch("fp32")).flops == 30_000 * 25_144_197_120
    full = rl.check(epoch("fp32"), "t4", "30 s", mode="graph")
    half = rl.check(epoch("fp16"), "t4", "30 s", mode="graph")
    assert full.estimate.floor == pytest.approx(93.13, rel=0.05)
    # The direct algorithm would be impossible; Winograd's 36 multiplications for 144 would just do, so the
    # answer is "faster than the range", and only less than that is impossible.
    assert full.measured < full.estimate.low
    assert "faster than the range" in full.reason
    assert full.lower_bound >= 93.13 / 4 / 1.06
    assert rl.check(epoch("fp32"), "t4", "20 s", mode="graph").verdict == "impossible"
    assert half.verdict == "as_expected"
    assert half.estimate.bound == "compute"
    assert half.estimate.floor >= 11.605


@pytest.mark.parametrize(
    ("op", "chip", "shape", "measured", "floor_us", "verdict"),
    [
        ("rmsnorm", "b200-sxm", (9450, 5120), "41.3 us", 24.192, "as_expected"),
        ("rmsnorm", "b200-sxm", (9450, 5120), "106.7 us", 24.192, "slow"),
        ("layernorm", "a100-40gb-sxm", (16384, 1024), "53.5 us", 43.157, "as_expected"),
    ],
)
def test_norms_are_read_and_written_once(
    op: str, chip: str, shape: tuple[int, int], measured: str, floor_us: float, verdict: str
) -> None:
    # B19: https://github.com/Dao-AILab/quack/issues/77
    answer = rl.check(one(op, rows=shape[0], cols=shape[1]), chip, measured)
    assert answer.estimate.floor * 1e6 == pytest.approx(floor_us, rel=1e-4)
    assert answer.verdict == verdict


def test_depthwise_convolutions_take_the_time_of_their_bytes() -> None:
    # B25: https://github.com/AlexeyAB/darknet/issues/3380
    size = {"n": 1, "c_in": 144, "h": 112, "w": 112}
    depthwise = one("conv2d", **size, c_out=144, r=3, s=3, padding=1, groups=144)
    est = rl.estimate(depthwise, "v100-sxm-16gb", mode="graph")
    assert est.intensity == pytest.approx(4.5, rel=0.01)
    assert est.floor * 1e6 == pytest.approx(8.028, rel=0.01)
    assert est.bound == "memory"
    assert est.mfu * est.time * 1e6 == pytest.approx(0.2601, rel=0.01)
    pointwise = rl.count(one("conv2d", **size, c_out=24, r=1, s=1))
    assert pointwise.intensity == pytest.approx(20.5, rel=0.01)


def test_a_slow_but_possible_matmul() -> None:
    # B27: https://github.com/ROCm/rocprofiler/issues/147
    graph = one("gemm", m=8192, n=8192, k=8192)
    assert rl.chip("mi300x").matmul_peak("fp16") == pytest.approx(1307.4432e12, rel=1e-4)
    assert rl.estimate(graph, "mi300x").floor * 1e3 == pytest.approx(0.84096, rel=0.001)
    assert at_rate(graph, "mi300x", 603) in ("as_expected", "slow")


def test_a_block_format_has_fractional_bytes() -> None:
    # B29: https://github.com/tenstorrent/tt-mlir/pull/8740; q8_0 stores as many bits as bfp8, 8.5
    # The source knows a share of the bandwidth and nothing else, so tiles are always fed here.
    fed = {"share": 1.2, "tile_half": 1.0, "step": 5e-9, "cache": 50.0, "store": 0.7, "throttle": 0.0,
           "skinny": 0.0, "knee": 8.0}  # fmt: skip
    target = rl.chip("wormhole-n150").replace(
        efficiency={"memory": 0.7, "launch": 0, "parameters": {"matmul": fed, "power": {"ratio": 0.0}}}
    )
    graph = rl.model("llama-3-8b", phase="decode", dtype="fp16", weights="q8_0")
    kernels = rl.estimate(graph, target, mode="graph", B=1, C=1).kernel_rows()
    matmuls = [row for row in kernels if row["op"] == "linear"]
    assert sum(row["floor_s"] * row["count"] for row in matmuls) * 1e3 == pytest.approx(27.687, rel=0.001)
    assert sum(row["time_s"] for row in matmuls) * 1e3 == pytest.approx(39.553, rel=0.001)
    assert {row["bound"] for row in matmuls} == {"memory"}


def test_bounds_stay_above_a_serving_engine() -> None:
    # B30: https://github.com/hahnyuan/LLM-Viewer/issues/4
    # 32 sequences of 128 in and 2048 out: a mean context of 1152.
    decode = rl.estimate(llama_7b(), "a100-80gb-sxm", mode="graph", B=32, C=1152)
    assert 1518 <= 32 / decode.floor <= 2005 * 1.005
    prefill = rl.model("llama-2-7b", phase="prefill", dtype="fp16")
    for seq, measured, floor in ((128, "16.1 ms", 6.481), (2048, "120.5 ms", 93.8)):
        answer = rl.check(prefill, "a100-80gb-sxm", measured, mode="graph", B=1, S=seq)
        assert answer.verdict in ("as_expected", "slow")
        assert floor * 0.9 <= answer.estimate.floor * 1e3 <= 1e3 * answer.measured
