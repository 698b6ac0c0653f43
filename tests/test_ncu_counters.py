"""FLOPs that Nsight Compute counted: each kernel a point on the roofline, by figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.diagnosis.counters import Counted, counted

#: H100 SXM by its datasheet: 66.9 TFLOP/s fp32 and 33.5 fp64 on the vector units, 989.4 bf16, 3.35 TB/s.
HBM, BF16, FP32 = 3.35e12, 989.4e12, 66.9e12
THREAD = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
HEAD = '"ID","Process ID","Kernel Name","Stream","Block Size","Grid Size","Device","CC"'


def wide(folder: Path, *launches: dict[str, Any], units: dict[str, str] | None = None) -> rl.traces.Trace:
    """A raw page of ncu: a launch a row, a metric a column."""
    names = list(dict.fromkeys(name for launch in launches for name in launch if name not in ("name", "CC")))
    lines = [",".join((HEAD, *(f'"{name}"' for name in names)))]
    lines += [",".join(['""'] * 8 + [f'"{(units or {}).get(name, "")}"' for name in names])]
    for at, launch in enumerate(launches):
        cells = (at, 1, launch.get("name", "kernel"), 7, "(128, 1, 1)", "(64, 1, 1)", 0, launch.get("CC", "9.0"))
        lines.append(",".join(f'"{cell}"' for cell in (*cells, *(launch.get(name, "n/a") for name in names))))
    path = folder / "ncu.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rl.traces.read_trace(path)


def kernel(folder: Path, *launches: dict[str, Any], **units: Any) -> Any:
    report = rl.diagnosis.trace_report(wide(folder, *launches, **units), "h100-sxm")
    json.dumps(report.record(), allow_nan=False)
    assert sum(part for _, part in report.waterfall) == pytest.approx(report.seconds)
    return report.ops[0]


def test_a_sweep_in_fp32_by_hand(tmp_path: Path) -> None:
    # y = a x + y on 2^28 floats: a multiply-add and 12 bytes an element, in 1.1 ms.
    elements = 2**28
    found = kernel(tmp_path, {
        "name": "saxpy", "gpu__time_duration.sum": 1.1e-3 * 1e9, "dram__bytes.sum": 12 * elements,
        THREAD.format("ffma"): elements, THREAD.format("fadd"): 0, THREAD.format("fmul"): 0,
    }, units={"gpu__time_duration.sum": "nsecond", "dram__bytes.sum": "byte"})  # fmt: skip
    assert (found.arithmetic, found.bytes, found.flops) == (2 * elements, 12 * elements, 0)
    assert found.intensity == pytest.approx(1 / 6)
    assert found.bytes_share == pytest.approx(12 * elements / 1.1e-3 / HBM, rel=2e-3)
    assert found.flops_share == pytest.approx(2 * elements / 1.1e-3 / FP32, rel=2e-3)
    assert (found.bound, found.dtype, found.formula) == ("memory", "fp32", "counted")
    assert found.floor_s == pytest.approx(12 * elements / HBM, rel=2e-3)


@pytest.mark.parametrize("form", ["sum", "sum.per_cycle_elapsed"])
def test_a_matmul_on_tensor_cores_by_hand(tmp_path: Path, form: str) -> None:
    # 4096^3 multiply-adds in bf16 in 200 us at 1.7 GHz, from 100 MB: 137.4 GFLOP at 687 TFLOP/s.
    flops, cycles = 2 * 4096**3, 200e-6 * 1.7e9
    metric = f"sm__ops_path_tensor_src_bf16_dst_fp32.{form}"
    found = kernel(tmp_path, {
        "name": "nvjet_gemm", "gpu__time_duration.sum": 200, "dram__bytes_read.sum": 67, "dram__bytes_write.sum": 33,
        metric: flops if form == "sum" else flops / cycles, "smsp__cycles_elapsed.avg.per_second": 1.7,
    }, units={"gpu__time_duration.sum": "usecond", "dram__bytes_read.sum": "Mbyte", "dram__bytes_write.sum": "Mbyte",
              "smsp__cycles_elapsed.avg.per_second": "cycle/nsecond"})  # fmt: skip
    assert found.flops == pytest.approx(flops)
    assert found.flops_per_s == pytest.approx(flops / 200e-6)
    assert found.flops_share == pytest.approx(flops / 200e-6 / BF16, rel=2e-3)
    assert (found.bound, found.dtype) == ("compute", "bf16")
    assert found.intensity == pytest.approx(flops / 100e6)
    assert "fp8" in found.proposal


def test_the_metrics_of_set_roofline_by_hand(tmp_path: Path) -> None:
    # What a multiply-add does stands in a metric of its own, of a cycle and doubled: (100 + 20 + 30) x 170,000 cycles.
    metrics = {
        "gpu__time_duration.sum": 100e3, "dram__bytes.sum": 1e6, "smsp__cycles_elapsed.avg.per_second": 1.7,
        THREAD.format("fadd") + ".per_cycle_elapsed": 20, THREAD.format("fmul") + ".per_cycle_elapsed": 30,
        f"derived__{THREAD.format('ffma').removesuffix('.sum')}_x2": 100,
        f"derived__{THREAD.format('ffma').removesuffix('.sum').replace('smsp', 'sm')}_x2": 33792,  # the most possible
    }  # fmt: skip
    units = {"gpu__time_duration.sum": "nsecond", "dram__bytes.sum": "byte",
             "smsp__cycles_elapsed.avg.per_second": "cycle/nsecond"}  # fmt: skip
    found = kernel(tmp_path, metrics, units=units)
    assert found.arithmetic == pytest.approx(150 * 170_000)
    assert found.flops_share == pytest.approx(150 * 1.7e9 / FP32, rel=2e-3)
    # Both forms in one file are the same work, and a rate without cycles is no work at all.
    both = kernel(tmp_path, metrics | {THREAD.format("ffma"): 50 * 170_000}, units=units)
    assert both.arithmetic == pytest.approx(150 * 170_000)
    del metrics["smsp__cycles_elapsed.avg.per_second"]
    assert kernel(tmp_path, metrics | {THREAD.format("dadd"): 7}, units=units).formula == "none"


def test_launches_of_one_kernel_add_up(tmp_path: Path) -> None:
    launch = {"gpu__time_duration.sum": 1e6, "dram__bytes.sum": 1e9, THREAD.format("ffma"): 1e9}
    units = {"gpu__time_duration.sum": "nsecond", "dram__bytes.sum": "byte"}
    found = kernel(tmp_path, launch, {**launch, THREAD.format("ffma"): 3e9}, units=units)
    assert (found.launches, found.arithmetic, found.bytes) == (2, 8e9, 2e9)
    assert found.flops_share == pytest.approx(8e9 / 2e-3 / FP32, rel=2e-3)


@pytest.mark.parametrize(("facts", "work"), [
    ({THREAD.format("dfma"): 10, THREAD.format("dadd"): 1, THREAD.format("dmul"): 2}, [("vector", "fp64", 23)]),
    # An instruction in half precision works on a pair: NVIDIA's chart takes hfma four times, hadd and hmul twice.
    ({THREAD.format("hfma"): 10, THREAD.format("hadd"): 1, THREAD.format("hmul"): 2}, [("vector", "fp16", 46)]),
    # The same counter of multiprocessors and of their parts counts once.
    ({THREAD.format("ffma"): 5, THREAD.format("ffma").replace("smsp", "sm"): 5}, [("vector", "fp32", 10)]),
    # A metric without the format of the result, or without sparsity, holds those with it.
    ({"sm__ops_path_tensor_src_fp8.sum": 30, "sm__ops_path_tensor_src_fp8_dst_fp32.sum": 20,
      "sm__ops_path_tensor_src_fp8_dst_fp32_sparsity_off.sum": 20}, [("matrix", "fp8", 30)]),
    ({"sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_off.sum": 20, "sm__ops_path_tensor_src_fp16_dst_fp16.sum": 4},
     [("matrix", "fp16", 24)]),
    ({"smsp__inst_executed_pipe_tensor.sum": 3, "CC": "7.0"}, [("matrix", "fp16", 3 * 512)]),
    ({"smsp__inst_executed_pipe_tensor.sum": 3, "CC": "9.0"}, []),
    ({THREAD.format("ffma"): "many", "gpu__time_duration.sum": "soon", THREAD.format("fadd"): float("nan")}, []),
    ({}, []),
])  # fmt: skip
def test_metrics(facts: dict[str, Any], work: list[tuple[str, str, float]]) -> None:
    assert list(counted(facts)) == [Counted(*one) for one in work]


def test_without_counts_of_flops_there_is_no_point(tmp_path: Path) -> None:
    found = kernel(tmp_path, {"gpu__time_duration.sum": 1e6, "dram__bytes.sum": 1e9},
                   units={"gpu__time_duration.sum": "nsecond", "dram__bytes.sum": "byte"})  # fmt: skip
    assert found.formula == "none"
    assert found.record()["intensity"] is None


def test_a_counted_kernel_is_a_point_on_the_roofline(tmp_path: Path) -> None:
    # The sweep above: 1/6 FLOP/byte, 2^29 FLOPs in 1.1 ms; one without counters has no place on the axes.
    sweep = {
        "name": "saxpy", "gpu__time_duration.sum": 1.1e6, "dram__bytes.sum": 12 * 2**28, THREAD.format("ffma"): 2**28,
        THREAD.format("fadd"): 0, THREAD.format("fmul"): 0,
    }  # fmt: skip
    units = {"gpu__time_duration.sum": "nsecond", "dram__bytes.sum": "byte"}
    trace = wide(tmp_path, sweep, {"name": "other", "gpu__time_duration.sum": 1e5}, units=units)
    chart = rl.charts.plot_roofline(rl.diagnosis.trace_report(trace, "h100-sxm"))
    assert [chart.points[at].name for at in chart.off_axes["FLOPs not known"]] == ["2 other"]
    assert chart.points[0].intensity == pytest.approx(1 / 6)
    assert chart.points[0].rate == pytest.approx(2**29 / 1.1e-3)
    assert chart.window.holds(chart.points[0])
