"""The verdict: impossible, as expected, slow, very slow; causes and advice as counterfactuals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import roofline as rl
from roofline.diagnosis.causes import FIXES, LABELS
from roofline.diagnosis.hypotheses import HYPOTHESES, RANGES
from roofline.diagnosis.reference import lower_bound

B = rl.ops.symbol("B")
CHIP = rl.Chip(
    name="hand",
    matrix={"bf16": "100 TFLOP/s", "tf32": "50 TFLOP/s", "int8": "200 TOP/s"},
    vector={"fp32": "10 TFLOP/s"},
    memory_bandwidth="1 TB/s",
    memory_capacity="16 GB",
    host_bandwidth="32 GB/s",
    efficiency={"compute": 0.5, "memory": 0.8, "launch": "1 us", "host": "5 us", "low": 0.6, "high": 1.5},
    clock_slack=1.05,
)
FLOPS = 2 * 4096**3


def gemm(dtype: str = "bf16") -> rl.Graph:
    b = rl.ops.Builder("gemm", dtype)
    return b.graph([b.op("linear", b.input("x", (4096, 4096)), b.weight("w", (4096, 4096)))])


def judge(measured: str | float, graph: rl.Graph | None = None, **options: object) -> rl.Verdict:
    return rl.check(graph or gemm(), CHIP, measured, mode="graph", **options)  # type: ignore[arg-type]


EXPECTED, HIGH = (getattr(rl.estimate(gemm(), CHIP, mode="graph"), name) for name in ("time", "high"))
LIMIT = FLOPS / 100e12 / 1.05


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (LIMIT * 0.999, "impossible"),
        (LIMIT * 1.001, "as_expected"),
        (EXPECTED * 0.6, "as_expected"),
        (EXPECTED, "as_expected"),
        (HIGH * 0.999, "as_expected"),
        (HIGH * 1.001, "slow"),
        (EXPECTED * 9.99, "slow"),
        (EXPECTED * 10.01, "very_slow"),
        (EXPECTED * 1e9, "very_slow"),
        (1e-30, "impossible"),
    ],
)
def test_verdicts(measured: float, verdict: str) -> None:
    found = judge(measured)
    assert found.verdict == verdict
    assert found.ok == (verdict == "as_expected")
    assert found.ratio == pytest.approx(measured / EXPECTED)
    assert found.lower_bound == pytest.approx(LIMIT)
    assert str(found) == f"{verdict}: {found.reason}"
    assert "\n" not in found.reason


def test_reasons_say_what_to_look_for() -> None:
    assert "missing synchronise" in judge("1 us").reason
    assert "compute-bound" in judge(EXPECTED).reason
    assert "faster than the range but possible" in judge(LIMIT * 1.01).reason
    assert "20 times" in judge(EXPECTED * 20).reason


@pytest.mark.parametrize("measured", [0, -1, "0 ms", "-3 ms", 0.0])
def test_a_time_is_above_zero(measured: str | float) -> None:
    with pytest.raises(rl.errors.UsageError, match="a time is above zero"):
        judge(measured)


@pytest.mark.parametrize("measured", [float("nan"), float("inf"), "nan", "41", "41 mss", "", True])
def test_a_time_is_a_finite_quantity(measured: object) -> None:
    with pytest.raises(rl.errors.UnitError):
        judge(measured)  # type: ignore[arg-type]


def test_a_measured_time_belongs_to_one_point() -> None:
    graph = rl.model("gpt2", layers=1, dtype="bf16")
    with pytest.raises(rl.errors.UsageError, match="belongs to one point"):
        rl.check(graph, "h100-sxm", "1 ms", B=[1, 2], S=8)
    with pytest.raises(rl.errors.UnboundSize, match=r"needs a value for batch \(B\), seq \(S\)"):
        rl.check(graph, "h100-sxm", "1 ms")


# --- the speed limit: no false alarm ---------------------------------------------------------------------------------


def limit(graph: rl.Graph, chip: rl.Chip = CHIP, **sizes: int) -> float:
    return lower_bound(rl.estimate(graph, chip, mode="graph", **sizes))


def test_a_3x3_convolution_may_run_in_a_quarter_of_its_products() -> None:
    def conv(size: int, **options: int) -> float:
        b = rl.ops.Builder("conv", "bf16")
        x, w = b.input("x", (64, 512, 56, 56)), b.weight("w", (512, 512, size, size))
        return limit(b.graph([b.op("conv2d", x, w, padding=size // 2, **options)]))

    products = 64 * 512 * 56 * 56 * 512
    assert conv(5) == pytest.approx(2 * products * 25 / 100e12 / 1.05)
    assert conv(3) == pytest.approx(2 * products * 9 / 4 / 100e12 / 1.05)  # Winograd F(4x4, 3x3)


def test_activations_may_stay_on_the_chip_and_sources_may_not() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.op("linear", b.input("x", (8, 4096)), b.weight("w", (4096, 4096)))
    for _ in range(50):
        x = b.op("relu", x)
    assert limit(b.graph([x])) == pytest.approx((2 * 8 * 4096 + 2 * 4096**2) / 1e12 / 1.05)


def test_a_cache_may_hold_sources_from_the_run_before() -> None:
    b = rl.ops.Builder("g", "bf16")
    graph = b.graph([b.op("linear", b.input("x", (8, 4096)), b.weight("w", (4096, 4096)))])
    moved = 2 * 8 * 4096 + 2 * 4096**2
    assert limit(graph, CHIP.replace(l2="16 MiB")) == pytest.approx((moved - 2**24) / 1e12 / 1.05)
    tiny = 2 * 8 * 4096**2 / 100e12 / 1.05  # all of it cached: the arithmetic is left
    assert limit(graph, CHIP.replace(l2="64 MiB")) == pytest.approx(tiny)


def test_a_table_that_is_looked_up_need_not_be_read() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.op("embedding", b.weight("table", (10**6, 1024)), b.input("ids", (4,), "int64"))
    graph = b.graph([b.op("linear", x, b.weight("w", (1024, 1024)))])
    assert limit(graph) == pytest.approx((4 * 8 + 2 * 4 * 1024 + 2 * 1024**2) / 1e12 / 1.05)


def test_large_activations_do_not_make_the_table_compulsory() -> None:
    graph = rl.model("bert-base-uncased", dtype="bf16")
    table = 30522 * 768 * 2
    est = rl.estimate(graph, CHIP.scale(compute=100), mode="graph", B=1, S=128)
    assert lower_bound(est) * 1.05 * 1e12 < est.memory.weights + est.memory.inputs - table + 10**6


def test_decode_must_read_its_cache() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=2)
    step = (limit(graph, B=64, C=4096) - limit(graph, B=64, C=2048)) * 1.05 * 1e12
    assert step == pytest.approx(2 * 2 * 64 * 2048 * 8 * 128 * 2)


def test_a_tied_weight_is_compulsory_once() -> None:
    b = rl.ops.Builder("g", "bf16")
    w = b.weight("w", (4096, 4096))
    y = b.op("linear", b.op("linear", b.input("x", (1, 4096)), w), w)
    assert limit(b.graph([y])) == pytest.approx((2 * 4096 + 2 * 4096**2) / 1e12 / 1.05)


@pytest.mark.parametrize(("name", "sizes"), [("resnet50", {"B": 8}), ("gpt2", {"B": 4, "S": 64}), ("vgg16", {"B": 1})])
def test_the_limit_is_never_above_the_expected_time(name: str, sizes: dict[str, int]) -> None:
    for mode in ("eager", "graph", "compiled"):
        est = rl.estimate(rl.model(name, dtype="bf16"), "h100-sxm", mode=mode, **sizes)  # type: ignore[arg-type]
        assert lower_bound(est) <= est.floor <= est.time


# --- causes ---


def llama(measured: str, **options: object) -> rl.Verdict:
    graph = rl.model("llama-3-8b", phase="decode")
    return rl.check(graph, "h100-sxm", measured, mode="graph", B=32, S=2048, **options)  # type: ignore[arg-type]


def chain(steps: int = 5, n: int = 2**26) -> rl.Graph:
    return rl.workload([{"op": "elementwise", "n": n, "inputs": 1, "count": steps}], "fp32")


@pytest.mark.parametrize("measured", [LIMIT * 1.01, EXPECTED, HIGH * 1.5, EXPECTED * 40, 1.0])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_parts_add_up_to_the_measured_time(measured: float, dtype: str) -> None:
    found = judge(measured, gemm(dtype))
    if found.verdict == "impossible":
        assert found.waterfall == ()
        return
    assert sum(seconds for _, seconds in found.waterfall) == pytest.approx(measured)
    assert all(seconds >= 0 for _, seconds in found.waterfall)
    assert [part for part, _ in found.waterfall][:2] == ["floor", "efficiency"]
    for cause in found.causes:
        assert cause.label in LABELS
        assert cause.share == pytest.approx(cause.explains_s / measured)
        assert cause.expected_after_s == pytest.approx(measured - cause.explains_s)
        assert cause.fix == FIXES[cause.label].text


def test_without_a_trace_there_is_one_cause_and_what_it_does_not_reach_is_unknown() -> None:
    found = judge("1 s")
    assert [cause.label for cause in found.causes][1:] in ([], ["unknown"])
    assert sum(cause.explains_s for cause in found.causes) == pytest.approx(1 - found.floor_s - found.efficiency_s)


def test_candidates_are_ranked_and_their_gaps_are_shown() -> None:
    found = llama("80 ms")
    assert found.verdict == "slow"
    scores = [candidate.score for candidate in found.candidates]
    assert scores == sorted(scores, reverse=True)
    assert len(found.candidates) >= 3
    for candidate in found.candidates:
        inside = candidate.low_s <= found.measured <= candidate.high_s
        assert (candidate.gap == 1) == inside
        assert candidate.question.endswith("?")


def test_a_program_in_fp32_without_tf32_is_told_so() -> None:
    slow = rl.estimate(gemm("fp32"), CHIP, mode="graph")
    found = judge(slow.time, gemm("fp32"))
    assert found.verdict == "as_expected", "it is what this format takes"
    assert found.causes[0].label == "precision"
    fast = rl.estimate(gemm("fp32"), CHIP, mode="graph", tf32=True)
    assert found.causes[0].explains_s == pytest.approx(slow.time - fast.time, rel=1e-6)
    assert "precision" in found.reason


def test_convolutions_in_fp32_that_are_faster_than_fp32_can_be_ran_in_tf32() -> None:
    sizes = {"n": 64, "c_in": 256, "h": 56, "w": 56, "c_out": 256, "r": 3, "s": 3, "padding": 1}
    conv = rl.workload([{"op": "conv2d", **sizes}], "fp32")
    fast = rl.estimate(conv, "h100-sxm", mode="graph", tf32=True)
    assert fast.time < rl.estimate(conv, "h100-sxm", mode="graph").low
    found = rl.check(conv, "h100-sxm", fast.time)
    assert (found.verdict, found.causes) == ("as_expected", ())
    assert found.estimate.tf32


def test_an_impossible_time_names_the_format_in_which_it_is_possible() -> None:
    fast = rl.estimate(gemm("fp32"), CHIP, mode="graph", tf32=True)
    found = judge(fast.time, gemm("fp32"))
    assert found.verdict == "impossible"
    assert "possible in tf32" in found.reason


def test_a_listed_chain_is_meant_as_one_kernel() -> None:
    fused, apart = (rl.estimate(g, "h100-sxm", mode="graph").time for g in (rl.passes.fuse(chain()), chain()))
    found = rl.check(chain(), "h100-sxm", apart)
    assert (found.verdict, found.causes[0].label) == ("slow", "unfused")
    assert found.causes[0].explains_s == pytest.approx(apart - fused)
    assert rl.check(chain(), "h100-sxm", fused).verdict == "as_expected"


def test_attention_scores_that_are_written_out_are_found() -> None:
    sizes = {"batch": 8, "heads": 16, "q_len": 2048, "kv_len": 2048, "head_dim": 64}
    naive = rl.estimate(rl.workload([{"op": "attention_naive", **sizes}]), "h100-sxm", mode="graph")
    found = rl.check(rl.workload([{"op": "attention", **sizes}]), "h100-sxm", naive.time)
    assert found.causes[0].label == "materialised"


def test_odd_rows_are_found() -> None:
    odd = rl.workload([{"op": "gemm", "m": 4097, "n": 4097, "k": 4097}])
    assert rl.check(odd, "h100-sxm", "1045.7 us").causes[0].label == "alignment"  # measured, h100-sxm/planted.csv
    even = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}])
    assert all(one.label != "alignment" for one in rl.check(even, "h100-sxm", "1045.7 us").candidates)


def test_a_planted_eager_run_is_found() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=32)
    eager = rl.estimate(graph, "h100-sxm", mode="eager", B=1, S=128)
    found = rl.check(graph, "h100-sxm", eager.host_time * 2, mode="graph", B=1, S=128)
    assert found.causes[0].label == "launch_bound"


def test_impossible_times_have_no_causes_and_no_advice() -> None:
    found = judge(LIMIT / 2)
    assert found.causes == found.candidates == found.advice == ()


def test_causes_that_the_chip_cannot_run_are_no_candidates() -> None:
    bare = rl.Chip(name="bare", matrix={"bf16": "100 TFLOP/s"}, memory_bandwidth="1 TB/s")
    found = rl.check(gemm(), bare, "1 s", mode="graph")
    assert found.verdict == "very_slow"
    assert all(one.label != "precision" for one in found.candidates), "no fp32 rate is known"


def test_hypotheses_have_known_labels_and_every_label_a_fix() -> None:
    assert {hypothesis.label for hypothesis in HYPOTHESES} == set(LABELS) - {"unknown"}
    assert all(hypothesis.prior > 0 for hypothesis in HYPOTHESES)
    assert LABELS[-1] == "unknown"


def test_every_figure_of_a_hypothesis_has_its_source() -> None:
    assert {hypothesis.range for hypothesis in HYPOTHESES} <= RANGES.keys()
    assert all(0 < cost.low <= cost.high and cost.unit and cost.meaning and cost.source for cost in RANGES.values())


def test_advice_names_an_option_and_a_call() -> None:
    for advice in (*llama("14 ms").advice, *judge(HIGH * 3, gemm("fp32")).advice):
        assert bool(advice.option) == bool(advice.call)
        assert advice.option.startswith("--") or not advice.option
        assert advice.call in str(advice)
    narrow = next(one for one in llama("14 ms").advice if one.change.startswith("weights in int8"))
    assert (narrow.option, narrow.call) == (
        "--weights int8 --cache int8",
        'rl.passes.quantize(graph, weights="int8", cache="int8")',
    )


# --- advice ---


def test_advice_saves_time_and_together_never_costs_any() -> None:
    found = llama("14 ms")
    assert found.advice
    assert all(one.saves_s > 0 for one in found.advice)
    changes = [one for one in found.advice if not one.change.startswith(("batch", "prune"))]
    for one in changes:
        assert one.time_s + one.saves_s == pytest.approx(found.measured), "counted from the measured time"
    together = [one.together_s for one in changes]
    assert together == sorted(together, reverse=True)
    assert together[-1] <= min(one.time_s for one in changes)
    assert together[-1] >= found.measured - sum(one.saves_s for one in changes), "no saving is counted twice"


def test_advice_begins_with_the_causes_of_the_measured_time() -> None:
    found = judge(HIGH * 3, gemm("fp32"))
    first = found.advice[0]
    assert first.change == found.causes[0].fix
    assert first.time_s == pytest.approx(found.measured - first.saves_s)


def test_a_memory_bound_program_is_told_to_narrow() -> None:
    changes = [one.change for one in llama("14 ms").advice]
    assert "weights in int8, cache in int8" in changes
    assert "weights in int4-g128, cache in int8" in changes
    assert "everything in bf16" not in changes, "it is in bf16 already"


def test_a_compute_bound_program_is_told_that_it_is_saturated() -> None:
    graph = rl.model("llama-3-8b", phase="prefill", layers=2)
    found = rl.check(graph, "h100-sxm", "20 ms", mode="graph", B=8, S=2048)
    assert found.estimate.bound == "compute"
    changes = " / ".join(one.change for one in found.advice)
    assert "batch 4 for latency" in changes
    assert "prune whole channels, or distil" in changes
    assert "single weights set to zero save nothing" in " / ".join(one.note for one in found.advice)


def test_an_fp32_program_is_told_of_tf32_and_bf16_where_the_chip_has_them() -> None:
    assert "allow tf32" in judge(FLOPS / 5e12, gemm("fp32")).advice[0].change, "the cause, with its measured saving"
    small = rl.check(gemm("fp32"), "a100-80gb-sxm", "9 ms", mode="graph").advice
    assert any("bf16" in one.change for one in small)
    volta = rl.check(gemm("fp32"), "v100-sxm-16gb", "10 ms").advice
    assert {"everything in fp16"} <= {one.change for one in volta}
    assert not {"everything in bf16", "allow tf32 for fp32 contractions"} & {one.change for one in volta}


def test_an_eager_program_is_told_of_graphs_and_compilers() -> None:
    graph = rl.model("gpt2", phase="decode", layers=4, dtype="bf16")
    found = rl.check(graph, "h100-sxm", rl.estimate(graph, "h100-sxm", B=1, S=64).device_time, B=1, S=64)
    advice = {one.change: one for one in found.advice}
    assert {"replay as a CUDA graph", "compile: fuse elementwise chains"} <= set(advice)
    assert "pays after" in advice["compile: fuse elementwise chains"].note


def test_naive_attention_is_told_of_flash() -> None:
    sizes = {"batch": 8, "heads": 16, "q_len": 2048, "kv_len": 2048, "head_dim": 64}
    naive = rl.workload([{"op": "attention_naive", **sizes}])
    changes = [one.change for one in rl.check(naive, "h100-sxm", "2.6 ms", mode="graph").advice]
    assert "one kernel for attention (flash)" in changes


def test_records_hold_the_stable_keys() -> None:
    record = llama("80 ms").record()
    assert {"verdict", "ratio", "measured_s", "causes", "advice", "candidates", "floor_s", "rows"} <= record.keys()
    keys = {"label", "explains_s", "share", "evidence", "fix", "expected_after_s", "option", "call"}
    assert keys == record["causes"][0].keys()
    assert {"change", "time_s", "saves_s"} <= record["advice"][0].keys()
    assert record["verdict"] in ("as_expected", "slow", "very_slow", "impossible")


def test_neither_time_nor_trace_is_an_error() -> None:
    with pytest.raises(rl.errors.UsageError, match="a measured time, a trace, or both"):
        rl.check(gemm(), CHIP)


# --- what no run can do ----------------------------------------------------------------------------------------------


def test_a_write_takes_its_time() -> None:
    fill = rl.workload([{"op": "fill", "n": 2**30}])
    assert rl.check(fill, "h100-sxm", "1 us", mode="graph").verdict == "impossible"


def test_every_launch_takes_its_time() -> None:
    resnet = rl.model("resnet50", dtype="bf16")
    assert rl.check(resnet, "h100-sxm", "10 us", B=1).verdict == "impossible"
    assert rl.check(resnet, "h100-sxm", "1055 us", mode="graph", B=1).verdict != "impossible"  # measured


def test_weights_stored_in_fp8_may_be_multiplied_in_fp8() -> None:
    prefill = rl.model("deepseek-v3", phase="prefill")
    assert rl.check(prefill, "h200-sxm", "300 ms", mode="graph", B=1, S=4096).verdict != "impossible"


def products(path: Path, *, device: bool) -> Path:
    """A trace of an operator whose shapes were not recorded, with its kernel or without."""
    rows = [("cpu_op", "aten::mm", 1, 9, {"External id": 1}),
            ("cuda_runtime", "cudaLaunchKernel", 2, 1, {"External id": 1, "correlation": 1}),
            ("kernel", "nvjet_a_gemm", 20, 90, {"External id": 1, "correlation": 1, "stream": 7})]  # fmt: skip
    events = [{"ph": "X", "cat": kind, "name": name, "ts": at, "dur": took, "pid": 0, "tid": 0, "args": args}
              for kind, name, at, took, args in rows[: 3 if device else 2]]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


def test_products_without_shapes_where_none_were_meant(tmp_path: Path) -> None:
    found = judge("100us", chain(n=2**20), trace=products(tmp_path / "a.json", device=True))
    assert found.causes[0].label == "wasted_work"


def test_a_trace_that_is_busy_for_longer_than_measured_is_told(tmp_path: Path) -> None:
    found = judge("30us", chain(n=2**20), trace=products(tmp_path / "a.json", device=True))
    assert any("parts are scaled" in note for note in found.notes)


def test_launches_without_device_events_are_no_work_of_the_processor(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.TraceError, match="the host launched kernels"):
        judge("1ms", trace=products(tmp_path / "a.json", device=False))


def test_a_first_convolution_alone_is_no_reason_for_tf32() -> None:
    vit = rl.model("vit-b-16", dtype="fp32", layers=2)
    low = float(rl.estimate(vit, CHIP, B=8).low)
    assert not rl.check(vit, CHIP, 0.9 * low, B=8).estimate.tf32


def test_times_beyond_counting_are_judged() -> None:
    assert judge(1e308).verdict == "very_slow"
