"""The verdict: impossible, as expected, slow, very slow; causes and advice as counterfactuals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.diagnosis.causes import FIXES, LABELS
from roofline.diagnosis.hypotheses import HYPOTHESES, RANGES, record
from roofline.diagnosis.reference import Reference, lower_bound

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


def judge(measured: str | float, graph: rl.Graph | None = None, **options: object) -> rl.diagnosis.Verdict:
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


def test_matmuls_on_zeros_are_faster_than_the_range_and_other_kernels_are_not() -> None:
    def product(b: rl.ops.Builder, x: str) -> str:
        return b.op("linear", x, b.weight("w", (8192, 8192)))

    def one(emit: Any) -> rl.Graph:
        b = rl.ops.Builder("g", "bf16")
        return b.graph([emit(b, b.input("x", (8192, 8192)))])

    graphs = {"matmul": one(product), "relu": one(lambda b, x: b.op("relu", x))}
    reasons = {}
    for name, graph in graphs.items():
        low = rl.estimate(graph, "h100-sxm", mode="graph").low
        judged = [rl.check(graph, "h100-sxm", low * share, mode="graph") for share in (0.95, 0.8)]
        reasons[name] = [each.reason for each in judged]
    assert "matmuls on zeros or equal tokens" in reasons["matmul"][0]
    assert "equal tokens" not in "".join(reasons["matmul"][1:] + reasons["relu"]), "not by so much, and not elsewhere"


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


def llama(measured: str, **options: object) -> rl.diagnosis.Verdict:
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


def test_one_expectation_whatever_was_measured() -> None:
    # PyTorch runs fp32 convolutions in tf32 on NVIDIA's chips, fp32 matmuls in fp32
    # (https://pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices).
    resnet = rl.model("resnet50", dtype="fp32")
    fast, slow = (rl.check(resnet, "h100-sxm", time, B=32) for time in ("6.14 ms", "13.1 ms"))
    assert (fast.verdict, slow.verdict) == ("as_expected", "slow")
    assert fast.estimate.time == slow.estimate.time == rl.estimate(resnet, "h100-sxm", B=32).time
    assert slow.candidates[0].label == "precision"
    assert all(any("fp32 convolutions in tf32" in note for note in found.notes) for found in (fast, slow))
    # Nothing is gained by allowing what was on.
    assert fast.advice
    assert not [one for one in fast.advice if "tf32" in one.change]
    off = rl.check(resnet, "h100-sxm", "13.1 ms", B=32, tf32=False)
    assert (off.verdict, off.notes) == ("as_expected", ())


@pytest.mark.parametrize(
    ("chip", "rate"),  # [TFLOP/s], datasheets: tf32 on NVIDIA's; on ROCm tf32 is opt-in, and Volta has none
    [("h100-sxm", 494.7), ("a100-80gb-sxm", 156), ("mi300x", 163.4), ("v100-sxm-16gb", 15.7)],
)
def test_convolutions_are_expected_in_the_format_that_pytorch_runs_them_in(chip: str, rate: float) -> None:
    conv = rl.workload([{"op": "conv2d", "n": 64, "c_in": 256, "h": 56, "w": 56, "c_out": 256, "r": 3, "s": 3}], "fp32")
    flops = 2 * 64 * 54 * 54 * 256 * 256 * 9
    assert rl.estimate(conv, chip, mode="graph").floor == pytest.approx(flops / rate / 1e12, rel=1e-3)


def test_a_format_asked_for_is_kept_or_refused(tmp_path: Path) -> None:
    # 2 x 6144^3 FLOP at 494.7 TFLOP/s take 938 us at least; 1.41 ms are expected, and 1131 us are between.
    entry = {"op": "gemm", "m": 6144, "n": 6144, "k": 6144}
    for graph in (rl.workload([entry], dtype="tf32"), rl.workload([{**entry, "dtype": "tf32"}])):
        found = rl.check(graph, "h100-sxm", "1131 us")
        assert (found.verdict, found.estimate.floor) == ("as_expected", pytest.approx(2 * 6144**3 / 494.7e12))
        with pytest.raises(rl.errors.MissingFigure, match="no published tf32 matmul peak"):
            rl.check(graph, "v100-sxm-16gb", "1131 us")
    each = tmp_path / "each.json"
    each.write_text(json.dumps([{**entry, "dtype": "fp16"}]), encoding="utf-8")
    with pytest.raises(rl.errors.UsageError, match="each names its own"):
        rl.estimate(each, "h100-sxm", dtype="tf32")
    with pytest.raises(rl.errors.UsageError, match="each names its own"):
        rl.diagnosis.check_ops([{**entry, "dtype": "fp16", "time_us": 1131}], "h100-sxm", dtype="tf32")
    with pytest.raises(rl.errors.UnknownDType, match="a precision of a training step"):
        rl.estimate("resnet50", "h100-sxm", dtype="amp-bf16", batch=8)


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


# --- guesses ----------------------------------------------------------------------------------------------------------


def questions(found: rl.diagnosis.Verdict) -> str:
    return " ".join(one.question for one in found.candidates)


@pytest.fixture(scope="module")
def captured() -> rl.Graph:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = torch.nn.LayerNorm(256), torch.nn.Linear(256, 768)
            self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
            x = x + torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    return rl.from_torch(Block(), torch.empty(4, 512, 256, device="meta"), dynamic={"B": 0})


@pytest.mark.parametrize("factor", [3, 12, 100])
@pytest.mark.parametrize("train", [False, True])
def test_what_a_captured_graph_shows_is_no_question(captured: rl.Graph, train: bool, factor: float) -> None:
    graph = rl.passes.training_graph(captured, precision="amp-bf16") if train else rl.passes.cast(captured, "bf16")
    found = rl.check(graph, "a100-80gb-sxm", factor * rl.estimate(graph, "a100-80gb-sxm", B=64).time, B=64)
    # It calls one operator for attention, one for gelu, in formats of its own, each once.
    for refuted in ("kernel of its own", "by hand", "scores", "cast to", "one-hot", "more computed", "piece by piece"):
        assert refuted not in questions(found)
    assert not any(f"{one.share:.0%} {one.label}" in found.reason for one in found.causes), "a guess is no headline"
    assert "a guess without a trace" in found.reason


def test_a_model_by_name_may_be_written_otherwise() -> None:
    graph = rl.model("gpt2", dtype="bf16")
    found = rl.check(graph, "h100-sxm", 6 * rl.estimate(graph, "h100-sxm", B=8, S=1024).time, B=8, S=1024)
    assert "by hand" in questions(found)
    assert "scores" in questions(found)


def test_a_batch_of_one_is_not_cut() -> None:
    def asked(batch: int) -> list[rl.diagnosis.Candidate]:
        graph = rl.model("llama-3-8b", phase="prefill", layers=2)
        found = rl.check(graph, "h100-sxm", "1 s", mode="graph", B=batch, S=512)
        return [one for one in found.candidates if one.label == "small_batch"]

    assert asked(1) == []
    reference = Reference(rl.model("llama-3-8b", phase="prefill", layers=2), rl.chip("h100-sxm"), "graph", None,
                          {"B": 4, "S": 512})  # fmt: skip
    assert asked(4)[0].high_s == pytest.approx(4 * reference.attainable), "four pieces read the weights four times"


@pytest.mark.parametrize(
    ("chip", "mode", "phase", "never"),
    [
        ("xeon-8480", "eager", "forward", {"host_copy", "wrong_device", "sync"}),
        ("h100-sxm", "graph", "forward", {"host_copy", "wrong_device", "sync", "host_bound"}),
        ("tpu-v5e", "graph", "forward", {"host_copy", "wrong_device", "sync", "host_bound", "launch_bound"}),
        ("h100-sxm", "eager", "train", {"reallocation", "communication"}),
        ("h100-sxm", "eager", "forward", {"communication", "reallocation"}),
    ],
)
def test_what_cannot_be_is_not_asked(chip: str, mode: Any, phase: str, never: set[str]) -> None:
    graph = rl.model("gpt2", phase=phase, dtype="bf16", layers=2)
    if phase == "train":
        graph = rl.passes.training_graph(graph)
    for measured in ("5 ms", "50 ms", "5 s"):
        found = rl.check(graph, chip, measured, mode=mode, B=2, S=64)
        assert not never & {one.label for one in found.candidates}


@pytest.mark.parametrize(("devices", "asked"), [(1, False), (8, True)])
def test_one_device_waits_for_no_other(devices: int, asked: bool) -> None:
    graph = rl.workload([{"op": "all_reduce", "bytes": 2**20, "devices": devices}])
    assert ("devices wait for each other" in questions(rl.check(graph, "h100-sxm", "1 s"))) == asked


@pytest.mark.parametrize("measured", [f"{2**power} us" for power in range(3, 30, 2)])
def test_what_does_not_fit_ranks_below_what_does_and_explains_nothing(measured: str) -> None:
    for graph, sizes in ((gemm("fp32"), {}), (rl.model("llama-3-8b", phase="decode", layers=2), {"B": 1, "C": 512})):
        found = rl.check(graph, "h100-sxm", measured, **sizes)
        fits = [one.gap == 1 for one in found.candidates]
        assert fits == sorted(fits, reverse=True)
        booked = {cause.label for cause in found.causes} - {"unknown", "precision"}
        assert booked <= {one.label for one in found.candidates[:1] if one.gap == 1}


def test_a_guess_says_how_often_it_was_right() -> None:
    found = rl.check(rl.workload([{"op": "attention", "batch": 8, "heads": 16, "q_len": 2048, "kv_len": 2048,
                                   "head_dim": 64}]), "h100-sxm", "2.6 ms")  # fmt: skip
    best = found.candidates[0]
    assert best.label == "materialised"
    assert (best.right, best.named) == record()[best.question] != (0, 0)
    assert f"a guess, right {best.right} of {best.named} times" in found.causes[0].evidence
    assert found.guesses == {"materialised"}


@pytest.mark.parametrize("chip", ["xeon-8480", "tpu-v5e", "m2-max"])
def test_advice_is_for_the_device(chip: str) -> None:
    graph = rl.model("gpt2", phase="decode", dtype="fp16" if chip == "m2-max" else "bf16")
    for factor in (1, 3, 30):
        found = rl.check(graph, chip, factor * rl.estimate(graph, chip, B=1, C=64).time, B=1, C=64)
        said = " ".join([*map(str, found.advice), *(cause.fix for cause in found.causes), *questions(found)])
        assert "CUDA" not in said
        assert "tf32" not in said


def test_a_calibrated_chip_says_how_well() -> None:
    mine = CHIP.replace(efficiency={"held_out_error": 0.12, "calibrated": "measured"})
    assert "mean error of 12%" in " ".join(rl.check(gemm(), mine, "5 ms").notes)
    assert not rl.check(gemm(), CHIP, "5 ms").notes


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
    for advice in (*llama("14 ms").advice, *judge(HIGH * 4, gemm("fp32")).advice):
        assert bool(advice.option) == bool(advice.call)
        assert advice.option.startswith("--") or not advice.option
        assert advice.call in str(advice)
    narrow = next(one for one in llama("14 ms").advice if one.change.startswith("weights in int8"))
    assert (narrow.option, narrow.call) == (
        "--weights int8 --cache int8",
        'rl.passes.quantize(graph, weights="int8", cache="int8")',
    )


# --- advice ---


@pytest.mark.parametrize(("model", "sizes"), [("resnet50", {"B": 1}), ("gpt2", {"B": 1, "C": 64})])
def test_advice_narrows_only_what_is_there(model: str, sizes: dict[str, int]) -> None:
    graph = rl.model(model, phase="decode" if "C" in sizes else None, dtype="bf16")
    narrow = [one for one in rl.check(graph, "xeon-8480", "50 ms", **sizes).advice if one.change.startswith("weights")]
    assert narrow
    for one in narrow:
        assert ("cache" in one.change) == ("--cache" in one.option) == ("cache=" in one.call) == ("C" in sizes)


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
    found = judge(HIGH * 4, gemm("fp32"))
    first = found.advice[0]
    assert first.change == found.causes[0].fix
    assert first.time_s == pytest.approx(found.measured - first.saves_s)


def test_a_memory_bound_program_is_told_to_narrow() -> None:
    changes = [one.change for one in llama("14 ms").advice]
    assert "weights in int8, cache in int8" in changes
    assert "weights in int4-g128, cache in int8" in changes
    assert "everything in bf16" not in changes, "it is in bf16 already"


def test_a_compute_bound_program_is_told_what_half_its_batch_keeps() -> None:
    graph = rl.model("llama-3-8b", phase="prefill", layers=2)
    found = rl.check(graph, "h100-sxm", "20 ms", mode="graph", B=8, S=2048)
    assert found.estimate.bound == "compute"
    changes = " / ".join(one.change for one in found.advice)
    assert "batch 4 for latency" in changes
    half = next(one for one in found.advice if one.change == "batch 4 for latency")
    rate = float(rl.estimate(graph, "h100-sxm", mode="graph", B=4, S=2048).throughput / found.estimate.throughput)
    assert half.note == f"shorter latency, {rate:.0%} of the throughput"
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


def test_absurd_times_are_judged_and_their_parts_add_up() -> None:
    found = judge(1e29)
    assert found.verdict == "very_slow"
    assert sum(seconds for _, seconds in found.waterfall) == pytest.approx(1e29)
    with pytest.raises(rl.errors.UnitError, match="not a finite number"):
        judge(1e308)


# --- what each change saves by itself ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> rl.Graph:
    """Return an encoder that was captured from PyTorch, with an open batch."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)  # not on the fast path
    return rl.from_torch(layer, torch.empty(4, 128, 256), dynamic={"B": 0})


@pytest.mark.parametrize(
    ("chip", "mode", "batch"), [("h100-sxm", "graph", 64), ("h100-sxm", "eager", 64), ("tpu-v5e", "eager", 64),
                                ("m4-max", "eager", 16), ("h100-sxm", "eager", 1)]
)  # fmt: skip
def test_alone_is_what_estimate_says_with_that_change(encoder: rl.Graph, chip: str, mode: str, batch: int) -> None:
    time = float(rl.estimate(encoder, chip, mode=mode, batch=batch).time)  # type: ignore[arg-type]
    ways = {
        "everything in bf16": (rl.passes.cast(encoder, "bf16"), {}),
        "compile: fuse elementwise chains": (encoder, {"mode": "compiled"}),
        "prune whole channels, or distil, to half the contractions": (rl.passes.prune(encoder, channels=0.5), {}),
        "weights in int8": (rl.passes.quantize(encoder, weights="int8"), {}),
    }
    offered = [one for one in rl.check(encoder, chip, time, mode=mode, batch=batch).advice if one.change in ways]
    assert offered
    for one in offered:
        graph, options = ways[one.change]
        alone = float(rl.estimate(graph, chip, **{"mode": mode, "batch": batch, **options}).time)
        assert one.time_s == pytest.approx(min(alone, time), rel=1e-6), one
        assert one.time_s + one.saves_s == pytest.approx(time)


def test_pruning_combines_with_the_changes_above_it(encoder: rl.Graph) -> None:
    fp16 = rl.passes.cast(encoder, "fp16")
    time = float(rl.estimate(fp16, "m4-max", batch=64).time)
    advice = {one.change: one for one in rl.check(fp16, "m4-max", time, batch=64).advice}
    pruned = rl.passes.quantize(rl.passes.prune(fp16, channels=0.5), weights="int4-g128")
    together = advice["prune whole channels, or distil, to half the contractions"].together_s
    assert "compile: fuse elementwise chains" in advice
    assert together == pytest.approx(float(rl.estimate(pruned, "m4-max", mode="compiled", batch=64).time), rel=1e-6)


def test_a_batch_captured_at_one_is_not_cut_into_pieces() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).eval()
    for batch in (1, 3):
        graph = rl.from_torch(layer, torch.empty(batch, 128, 256))
        pieces = [one for one in rl.check(graph, "h100-sxm", "10 ms").candidates if one.label == "small_batch"]
        reference = float(rl.estimate(graph, "h100-sxm", mode="graph", tf32=True).time)
        assert [one.high_s for one in pieces] == pytest.approx([3 * reference] if batch == 3 else [])


def test_time_that_the_estimate_gives_to_launches_is_not_given_to_the_format(encoder: rl.Graph) -> None:
    run = rl.estimate(encoder, "h100-sxm", batch=16)
    assert run.bound == "host"
    parts = {one.label: one.explains_s for one in rl.check(encoder, "h100-sxm", float(run.time), batch=16).causes}
    device = [float(rl.estimate(encoder, "h100-sxm", mode="graph", batch=16, tf32=tf32).time) for tf32 in (None, True)]
    assert parts["precision"] == pytest.approx(device[0] - device[1], rel=1e-6)
    assert parts["launch_bound"] == pytest.approx(float(run.time) - device[0], rel=1e-6)


def test_a_guess_leaves_the_host_what_the_estimate_gives_to_it() -> None:
    bert, sizes = rl.model("bert-base-uncased"), {"batch": 1, "seq": 64}
    run, device = (float(rl.estimate(bert, "a100-80gb-sxm", mode=mode, **sizes).time) for mode in ("eager", "graph"))
    seconds = 2.5 * run  # longer than the host itself may take
    found = rl.check(bert, "a100-80gb-sxm", seconds, **sizes)
    assert found.verdict == "slow"
    parts = {one.label: one.explains_s for one in found.causes}
    assert found.candidates[0].label not in ("launch_bound", "precision")
    assert parts["launch_bound"] == pytest.approx(run - device, rel=1e-6)
    assert sum(part for _, part in found.waterfall) == pytest.approx(seconds)
