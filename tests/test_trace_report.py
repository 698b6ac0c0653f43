"""A trace on its own: operators against roofs derived by hand, idle time with known reasons, and bad inputs."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_traces import FP32, Made, chain

import roofline as rl
from roofline.diagnosis.iteration import run_of
from roofline.diagnosis.op_summary import ABOVE, CASES

SHARED = Path(__file__).resolve().parents[2] / "shared" / "measurements" / "h100-sxm" / "traces"

# The H100's roofs of its datasheet: 989.4 TFLOP/s bf16, 3.35 TB/s, so the ridge is at 295 FLOP/byte.
PEAK, BANDWIDTH = 989.4e12, 3.35e12

# BERT-base, batch 64, 512 tokens, so 32768 rows; hidden 768, feed-forward 3072, 12 heads of 64, bf16.
ROWS = 64 * 512
# up: 2 * 64*512 * 768 * 3072 FLOPs; reads rows x 768, 768 x 3072, 3072; writes rows x 3072; 2 bytes each.
UP_FLOPS = 2 * ROWS * 768 * 3072
UP_BYTES = 2 * (ROWS * 768 + 768 * 3072 + 3072 + ROWS * 3072)
# intensity 154.6e9 / 256.4e6 = 603 > 295: compute-bound.
# gelu of rows x 3072: reads and writes 2 bytes an element, no contraction: memory-bound.
GELU_BYTES = 2 * 2 * ROWS * 3072
# attention: two products of 2 * 64 * 12 * 512 * 512 * 64 FLOPs; q, k, v and the result of rows x 768.
ATTENTION_FLOPS = 2 * 2 * 64 * 12 * 512 * 512 * 64
ATTENTION_BYTES = 4 * 2 * ROWS * 768


def bert() -> Made:
    """One layer, twice; durations near those of an H100."""
    calls: list[Any] = [
        ("aten::addmm", [[768], [ROWS, 768], [768, 768], [], []], 62.0, {}),
        ("aten::_scaled_dot_product_flash_attention", [[64, 12, 512, 64]] * 3 + [[], [], []], 140.0,
         {"concrete": ["", "", "", "0.", "False", "False"], "kernel": "flash_fwd_kernel"}),
        ("aten::addmm", [[3072], [ROWS, 768], [768, 3072], [], []], 233.0, {"kernel": "nvjet_sm90"}),
        ("aten::gelu", [[64, 512, 3072], []], 148.0, {"kernel": "vectorized_elementwise_kernel"}),
        ("aten::addmm", [[768], [ROWS, 3072], [3072, 768], [], []], 204.0, {"kernel": "nvjet_sm90"}),
        ("aten::native_layer_norm", [[64, 512, 768], [], [768], [768], []], 76.0,
         {"concrete": ["", "[768]", "", "", "1e-05"]}),
    ]  # fmt: skip
    return chain(Made(), calls)


def line(report: rl.diagnosis.TraceReport, op: str, at: int = 0) -> Any:
    return [one for one in report.ops if one.op == op][at]


def test_bert_against_figures_by_hand(tmp_path: Path) -> None:
    report = rl.diagnosis.trace_report(bert().write(tmp_path))
    assert report.chip is not None
    assert report.chip.name == "h100-sxm"
    assert report.iterations == 2
    assert [one.op for one in report.ops[:5]] == [
        "aten::addmm", "aten::addmm", "aten::gelu", "aten::_scaled_dot_product_flash_attention",
        "aten::native_layer_norm",
    ]  # fmt: skip
    assert [one.bound for one in report.ops[:5]] == ["compute", "compute", "memory", "compute", "memory"]
    up, gelu, attention = report.ops[0], line(report, "aten::gelu"), report.ops[3]
    assert up.flops == UP_FLOPS
    assert up.bytes == UP_BYTES
    assert UP_FLOPS / UP_BYTES > PEAK / BANDWIDTH
    assert up.flops_per_s == pytest.approx(UP_FLOPS / 233e-6)
    assert up.flops_share == pytest.approx(UP_FLOPS / 233e-6 / PEAK, rel=2e-3)
    assert gelu.bytes == GELU_BYTES
    assert gelu.bytes_share == pytest.approx(GELU_BYTES / 148e-6 / BANDWIDTH, rel=2e-3)
    assert math.isnan(gelu.flops_per_s)
    assert attention.flops == ATTENTION_FLOPS
    # The log-sum-exp that flash attention keeps for a backward pass is next to nothing beside them.
    assert attention.bytes == pytest.approx(ATTENTION_BYTES, rel=0.02)
    assert up.proposal.startswith("as fast as such kernels get: ")
    assert "fp8" in up.proposal
    assert "fuse" in gelu.proposal
    assert report.seconds == pytest.approx(863e-6)
    assert sum(one.share for one in report.ops) == pytest.approx(1)


# GPT-2 small in decode: batch 8, one token, 1024 positions, bf16.
# projection 8 x 768 by 768 x 2304: 28.3e6 FLOPs and 3.58e6 bytes, 7.9 FLOP/byte: memory-bound, were it not too small;
# the vocabulary's 8 x 768 by 768 x 50304 moves 78.1e6 bytes in at least 23 us: memory-bound.
VOCABULARY_FLOPS = 2 * 8 * 768 * 50304
VOCABULARY_BYTES = 2 * (8 * 768 + 768 * 50304 + 8 * 50304)


def test_gpt2_decode_by_hand(tmp_path: Path) -> None:
    calls: list[Any] = [
        ("aten::addmm", [[2304], [8, 768], [768, 2304], [], []], 5.0, {}),
        ("aten::addmm", [[3072], [8, 768], [768, 3072], [], []], 6.0, {}),
        ("aten::mm", [[8, 768], [768, 50304]], 30.0, {"kernel": "nvjet_sm90"}),
    ]
    report = rl.diagnosis.trace_report(chain(Made(), calls, iterations=3).write(tmp_path))
    assert report.iterations == 3
    head = report.ops[0]
    assert (head.op, head.bound) == ("aten::mm", "memory")
    assert head.flops == VOCABULARY_FLOPS
    assert head.bytes == VOCABULARY_BYTES
    assert head.bytes_share == pytest.approx(VOCABULARY_BYTES / 30e-6 / BANDWIDTH, rel=2e-3)
    assert "batch more" in head.proposal
    assert {one.bound for one in report.ops[1:]} <= {"launch", "memory"}


def test_recorded_bert() -> None:
    path = SHARED / "bert_base_b64_s512.json.gz"
    if not path.is_file():
        pytest.skip("no recorded traces here")
    report = rl.diagnosis.trace_report(path)
    assert [one.bound for one in report.ops[:5]] == ["compute", "compute", "compute", "memory", "memory"]
    up = next(one for one in report.ops if one.shapes == "3072, 32768x768, 768x3072")
    assert up.calls == 12
    assert up.flops == 12 * UP_FLOPS
    assert line(report, "aten::gelu").bytes == 12 * GELU_BYTES
    assert sum(part for _, part in report.waterfall) == pytest.approx(report.seconds)


# --- idle time --------------------------------------------------------------------------------------------------------


def adds(made: Made, start: float, issued: float, **options: Any) -> float:
    return made.call("aten::add", [[1024, 1024], [1024, 1024], []], start, 10.0, issued=issued, **options)


def idle_of(tmp_path: Path, made: Made) -> dict[str, float]:
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert sum(report.idle.values()) + report.busy == pytest.approx(report.seconds)
    assert sum(part for _, part in report.waterfall) == pytest.approx(report.seconds)
    return {name: round(part * 1e6, 1) for name, part in report.idle.items()}


def different(made: Made, start: float) -> float:
    """A last call that keeps the trace one iteration."""
    return made.call("aten::mul", [[1024, 1024], [1024, 1024]], start, 10.0, issued=start - 1)


def test_idle_launching(tmp_path: Path) -> None:
    made = Made()
    adds(made, 1000, 999)  # the host begins at 998: two microseconds before it runs
    adds(made, 1030, 1029, host=40.0)  # 20 us after the first ended, the host busy in between
    made.slice("cpu_op", "aten::view", 1003, 24)
    different(made, 1040)
    found = idle_of(tmp_path, made)
    assert found["launches"] == pytest.approx(22, abs=1)
    assert found["host"] == found["sync"] == found["copies"] == 0


def test_idle_host_bound(tmp_path: Path) -> None:
    made = Made()
    adds(made, 1000, 999)
    adds(made, 2010, 2009)  # a millisecond in which the host does nothing that the profiler sees
    different(made, 2020)
    found = idle_of(tmp_path, made)
    assert found["host"] == pytest.approx(1000, rel=0.01)
    assert found["launches"] < 15


def test_idle_synchronisation(tmp_path: Path) -> None:
    made = Made()
    adds(made, 1000, 999)
    made.slice("cuda_runtime", "cudaStreamSynchronize", 1002, 10)
    made.slice("cpu_op", "aten::view", 1012, 27)
    adds(made, 1040, 1039)
    different(made, 1050)
    found = idle_of(tmp_path, made)
    assert found["sync"] == pytest.approx(30, abs=2)
    assert found["copies"] == 0


def test_what_is_computed_away_and_what_is_prepared_are_not_counted_twice(tmp_path: Path) -> None:
    made = Made()
    out = {"category": "gpu_memcpy", "kernel": "Memcpy DtoH (Device -> Pageable)", "bytes": 1_000_000}
    back = out | {"kernel": "Memcpy HtoD (Pageable -> Device)"}
    made.call("aten::copy_", [[500, 500], [500, 500], []], 1000, 50, issued=999, **out)
    made.slice("cpu_op", "aten::sort", 1060, 500)  # on what was copied out, and its result goes back
    made.call("aten::copy_", [[500, 500], [500, 500], []], 1570, 50, issued=1569, **back)
    made.slice("cpu_op", "aten::flip", 1630, 300)  # of something else, before the next kernel
    adds(made, 1940, 1939)
    different(made, 1950)
    trace = rl.traces.read_trace(made.write(tmp_path))
    waits = run_of(trace, rl.chip("h100-sxm")).idle
    assert waits.heavy == {"aten::flip": pytest.approx(300e-6)}
    assert waits.seconds["host_compute"] == pytest.approx(300e-6)
    assert waits.seconds["wrong_device"] == pytest.approx(500e-6, rel=0.05)


def test_idle_copies(tmp_path: Path) -> None:
    made = Made()
    copy = {"category": "gpu_memcpy", "kernel": "Memcpy HtoD (Pageable -> Device)", "bytes": 64_000_000}
    made.slice("cpu_op", "aten::to", 998, 3110)
    made.call("aten::copy_", [[4000, 4000], [4000, 4000], []], 1000, 3000, issued=999, **copy)
    adds(made, 4100, 4099)
    different(made, 4110)
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.idle["copies"] == pytest.approx(100e-6, rel=0.05)
    assert report.copies.exposed == pytest.approx(3e-3)
    assert report.copies.overlapped == 0
    first = report.ops[0]
    assert first.bound == "link"
    assert first.bytes_per_s == pytest.approx(64e6 / 3e-3)
    assert first.label == "host_copy"
    assert report.causes[0].label == "host_copy"


def test_communication_exposed_and_overlapped(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mm", [[4096, 4096], [4096, 4096]], 1000, 200)
    reduce = {"kernel": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "stream": 20}
    made.call("c10d::allreduce_", None, 1100, 150, **reduce)  # 100 us beside the product, 50 us alone
    different(made, 1250)
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.communication.seconds == pytest.approx(150e-6)
    assert report.communication.overlapped == pytest.approx(100e-6)
    assert report.communication.exposed == pytest.approx(50e-6)
    assert report.busy == pytest.approx(260e-6)  # the union, no sum


def test_operators_long_on_the_processor(tmp_path: Path) -> None:
    made = Made()
    adds(made, 1000, 999)
    made.slice("cpu_op", "aten::sort", 1004, 500)
    adds(made, 1520, 1519)
    different(made, 1530)
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    ((name, calls, seconds),) = report.host_ops
    assert (name, calls) == ("aten::sort", 1)
    assert seconds == pytest.approx(500e-6)
    assert report.idle["host"] == pytest.approx(494e-6, rel=0.02)


# --- what is said about an operator -----------------------------------------------------------------------------------


def test_above_the_roof_is_said(tmp_path: Path) -> None:
    made = chain(Made(), [("aten::mm", [[4096, 4096], [4096, 4096]], 50.0, {})])  # 137.4 GFLOP in 50 us: 2.7 PFLOP/s
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.ops[0].above
    assert report.ops[0].proposal == ABOVE
    assert report.ops[0].flops_share > 2
    assert any(note.startswith("above the roof of h100-sxm: aten::mm") for note in report.notes)


def test_precision_in_full_fp32(tmp_path: Path) -> None:
    # 137.4 GFLOP in 2.6 ms are 53 TFLOP/s of 67: the vector units in fp32.
    made = chain(Made(), [("aten::mm", [[4096, 4096], [4096, 4096]], 2600.0, {"dtype": FP32})])
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.ops[0].label == "precision"
    assert report.ops[0].proposal.startswith("cast to a 16-bit format")
    assert [cause.label for cause in report.causes] == ["precision"]


def test_fp32_too_fast_for_it_is_tf32(tmp_path: Path) -> None:
    made = chain(Made(), [("aten::mm", [[4096, 4096], [4096, 4096]], 400.0, {"dtype": FP32})])  # 344 TFLOP/s
    first = rl.diagnosis.trace_report(made.write(tmp_path)).ops[0]
    assert first.dtype == "tf32"
    assert not first.above
    assert 0.5 < first.flops_share < 1


def test_another_chip_than_the_trace_names(tmp_path: Path) -> None:
    report = rl.diagnosis.trace_report(bert().write(tmp_path), "h200-sxm")
    assert "the trace names h100-sxm, and h200-sxm was given" in report.notes


def test_every_case_has_a_text() -> None:
    assert all(case.text and case.bounds for case in CASES)
    assert {bound for case in CASES for bound in case.bounds.split()} == {
        "compute",
        "memory",
        "launch",
        "communication",
    }


# --- without a chip, without a device ---------------------------------------------------------------------------------


def test_unknown_device_keeps_what_needs_no_chip(tmp_path: Path) -> None:
    made = bert()
    made.document["deviceProperties"] = [{"id": 0, "name": "Frobnicator 9000"}]
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.chip is None
    assert any("Frobnicator 9000" in note and "--chip" in note for note in report.notes)
    up = report.ops[0]
    assert up.flops == UP_FLOPS
    assert up.flops_per_s == pytest.approx(UP_FLOPS / 233e-6)
    assert up.bound == ""
    assert math.isnan(up.flops_share)
    assert up.record()["flops_share"] is None
    assert report.busy == pytest.approx(863e-6)


def cpu_chip() -> rl.Chip:
    return rl.Chip(name="mine", vector={"fp32": "100 GFLOP/s"}, memory_bandwidth="20 GB/s", memory_capacity="32 GB")


def test_operators_on_the_processor(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    layer, x = torch.nn.Linear(256, 1024), torch.randn(64, 256)
    with torch.no_grad():
        layer(x)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
            for _ in range(3):
                torch.nn.functional.gelu(layer(x))
    path = tmp_path / "cpu.json"
    found.export_chrome_trace(str(path))
    report = rl.diagnosis.trace_report(path, cpu_chip())
    assert report.on_cpu
    assert report.chip is not None
    product = line(report, "aten::addmm")
    # 2 * 64 * 256 * 1024 FLOPs of each call; the linear layer around it has no FLOPs of its own.
    assert product.flops == pytest.approx(2 * 64 * 256 * 1024 * product.calls)
    assert product.bound
    assert line(report, "aten::linear").formula == "free"
    assert line(report, "aten::linear").flops == 0
    assert sum(one.flops for one in report.ops) == pytest.approx(product.flops)
    assert report.causes == ()
    assert not report.ops[0].label
    bare = rl.diagnosis.trace_report(path)
    assert bare.chip is None
    assert any("--chip" in note for note in bare.notes)
    assert sum(one.share for one in bare.ops) == pytest.approx(1)
    json.dumps(bare.record(), allow_nan=False)


def test_a_device_in_the_properties_is_no_device_that_worked(tmp_path: Path) -> None:
    made = Made()
    made.slice("cpu_op", "aten::mm", 0, 900, **{"Input Dims": [[512, 512], [512, 512]], "Input type": [FP32, FP32]})
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.on_cpu
    assert report.chip is None


# --- other formats ----------------------------------------------------------------------------------------------------

_NCU_LAUNCH = '"0","1","void gemm<float>(int)","7","(128, 1, 1)","(64, 1, 1)","9.0"'
NCU = f"""\
"ID","Process ID","Kernel Name","Stream","Block Size","Grid Size","CC","Metric Name","Metric Unit","Metric Value"
{_NCU_LAUNCH},"gpu__time_duration.sum","nsecond","100000"
{_NCU_LAUNCH},"dram__bytes.sum","Mbyte","250"
{_NCU_LAUNCH},"sm__throughput.avg.pct_of_peak_sustained_elapsed","%","20"
{_NCU_LAUNCH},"dram__throughput.avg.pct_of_peak_sustained_elapsed","%","75"
"""
TT = """OP CODE,DEVICE ID,DEVICE ARCH,CORE COUNT,AVAILABLE WORKER CORE COUNT,MATH FIDELITY,DEVICE KERNEL DURATION [ns]
MatmulDeviceOperation,0,wormhole_b0,36,64,HiFi2,41000
SoftmaxDeviceOperation,0,wormhole_b0,64,64,HiFi4,4000
"""
NSYS = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,900000,10,90000,90000,90000,90000,0,ampere_bf16_gemm
10.0,100000,20,5000,5000,5000,5000,0,triton_poi_fused_add_0
"""


def of_text(tmp_path: Path, text: str, chip: str | None = None) -> rl.diagnosis.TraceReport:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    report = rl.diagnosis.trace_report(path, chip)
    json.dumps(report.record(), allow_nan=False)
    assert not report.timed
    assert report.record()["idle"] is None
    return report


def test_counters_of_ncu(tmp_path: Path) -> None:
    (kernel,) = of_text(tmp_path, NCU, "h100-sxm").ops
    assert kernel.seconds == pytest.approx(100e-6)
    assert kernel.bytes == pytest.approx(250e6)
    assert kernel.bytes_share == pytest.approx(250e6 / 100e-6 / BANDWIDTH, rel=2e-3)
    assert kernel.bound == "memory"
    assert kernel.counters == "SM busy 20%, DRAM busy 75%"


def test_cores_and_fidelity_of_tenstorrent(tmp_path: Path) -> None:
    first, second = of_text(tmp_path, TT, "wormhole-n150").ops
    assert first.seconds == pytest.approx(41e-6)
    # 74 TFLOP/s at four passes on 72 cores: twice that at two passes, on half of the cores.
    assert first.counters == "36 cores, 64 available, HiFi2, peak 74 TFLOP/s"
    assert second.share == pytest.approx(4 / 45)
    assert any("wormhole_b0" in note for note in of_text(tmp_path, TT).notes)


def test_sums_of_nsys(tmp_path: Path) -> None:
    report = of_text(tmp_path, NSYS)
    assert [(one.op, one.calls) for one in report.ops] == [("ampere_bf16_gemm", 10), ("triton_poi_fused_add_0", 20)]
    assert report.busy == pytest.approx(1e-3)
    assert report.unknown == report.ops


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"traceEvents": []}', '{"log": {"entries": []}}', '{"cells": [], "nbformat": 4}', "not a trace"],
)
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(rl.errors.TraceError):
        rl.diagnosis.trace_report(path)


def test_nothing_ran(tmp_path: Path) -> None:
    made = Made()
    made.slice("user_annotation", "only a range", 0, 10)
    with pytest.raises(rl.errors.TraceError, match=r"neither operators nor device events, only annotation"):
        rl.diagnosis.trace_report(made.write(tmp_path))


def test_no_path_at_all() -> None:
    with pytest.raises(rl.errors.UsageError, match="expected a trace"):
        rl.diagnosis.trace_report(7)  # type: ignore[arg-type]
    with pytest.raises(rl.errors.TraceError):
        rl.diagnosis.trace_report("no such file.json")


def test_events_without_shapes(tmp_path: Path) -> None:
    made = chain(Made(), [("aten::mm", None, 100.0, {"kernel": "nvjet"}), ("aten::add", None, 20.0, {})])
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert [one.op for one in report.unknown] == ["aten::mm", "aten::add"]
    assert any("record_shapes=True" in note for note in report.notes)
    assert report.seconds == pytest.approx(120e-6)


def test_negative_durations_are_left_out(tmp_path: Path) -> None:
    made = bert()
    made.slice("kernel", "backwards", 1100, -5.0, device=0, stream=7)
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert all(one.seconds >= 0 for one in report.ops)
    assert report.notes


def test_two_processes(tmp_path: Path) -> None:
    made = bert()
    other = bert()
    for event in other.events:
        if event["cat"] in ("cpu_op", "cuda_runtime"):
            event["pid"] = 200
        else:
            event["pid"] = event["args"]["device"] = 1
        numbers = event["args"].keys() & {"External id", "correlation"}
        event["args"] |= {key: event["args"][key] + 1000 for key in numbers}
    made.events += other.events
    made.document["deviceProperties"].append({"id": 1, "name": "NVIDIA H100 80GB HBM3"})
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.busy == pytest.approx(863e-6)  # of one device, not of both
    assert any("figures are of device 0; left out: 1" in note for note in report.notes)
    assert any("2 host processes" in note for note in report.notes)


def test_a_cut_file_is_partial(tmp_path: Path) -> None:
    path = bert().write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(whole[: int(len(whole) * 0.8)]))
    report = rl.diagnosis.trace_report(path)
    assert report.partial
    assert report.record()["partial"] is True
    assert any(note.startswith("partial: ") for note in report.notes)
    assert report.ops


def test_record_is_strict_json_with_stable_keys(tmp_path: Path) -> None:
    record = rl.diagnosis.trace_report(bert().write(tmp_path)).record()
    text = json.dumps(record, allow_nan=False)
    assert {"schema", "chip", "time_s", "busy_s", "idle", "communication", "rows", "unknown", "causes", "notes",
            "waterfall", "partial", "iterations"} <= json.loads(text).keys()  # fmt: skip
    assert {"op", "kernels", "calls", "time_s", "share", "bound", "flops_per_s", "bytes_per_s", "flops_share",
            "bytes_share", "expected_s", "ratio", "shapes", "proposal"} <= record["rows"][0].keys()  # fmt: skip


def test_many_events_take_seconds(tmp_path: Path) -> None:
    calls: list[Any] = [("aten::mm", [[256, 256], [256, 256]], 3.0, {}), ("aten::add", [[256, 256]] * 2, 2.0, {})]
    report = rl.diagnosis.trace_report(chain(Made(), calls, iterations=5000).write(tmp_path))
    assert report.seconds * report.iterations == pytest.approx(5e-6 * 5000, rel=0.01)
