"""A cause is claimed from records that could show it, facts stay with their event, and parts add up to the time."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import FP32, Made, chain
from profiles import examples

import roofline as rl
from roofline.diagnosis.causes import fix_of

#: A GPU whose every figure is known, a CPU, and a chip without graphs of launches or tf32.
CPU = rl.Chip(
    name="mine", form="CPU", matrix={"fp32": "150 GFLOP/s"}, vector={"fp32": "100 GFLOP/s"}, memory_bandwidth="40 GB/s",
    memory_capacity="16 GB",
)  # fmt: skip


def report(folder: Path, made: Made, chip: Any = None) -> rl.diagnosis.TraceReport:
    return rl.diagnosis.trace_report(made.write(folder), chip)


# --- facts stay with their event --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [None, [[1000]]])
@pytest.mark.parametrize("key", ["Group size", "Process Group Name", "dtype", "In msg nelems", "Collective name"])
def test_collectives_of_equal_name_keep_their_facts(tmp_path: Path, key: str, dims: Any) -> None:
    made = Made()
    same = {"Collective name": "allreduce", "Group size": 8, "In msg nelems": 500}
    values = {"Group size": (8, 2), "In msg nelems": (500, 7)}.get(key, ("a", "b"))
    for at in range(5):
        made.call("nccl:all_reduce", dims, 1000.0 * (at + 1), 100 + at, kernel="ncclDevKernel_AllReduce")
        made.events[-1]["args"] |= same | {key: values[at % 3 == 1]}
    ops = report(tmp_path, made).ops
    assert [one.launches for one in ops] == [3, 2]
    if key == "Group size":
        assert ["on 8 devices" in one.counters for one in ops] == [True, False]
        assert "on 2 devices" in ops[1].counters


def test_the_chip_is_that_of_the_device_that_worked(tmp_path: Path) -> None:
    made = Made("Tesla T4")
    made.document["deviceProperties"].append({"id": 1, "name": "NVIDIA A100-SXM4-80GB"})
    made.call("aten::mm", [[256, 256]] * 2, 100, 10)
    made.call("aten::mm", [[256, 256]] * 2, 100, 90, device=1)
    found = report(tmp_path, made)
    assert found.chip is not None
    assert found.chip.name == "a100-80gb-sxm"


# --- causes and the records that could show them ----------------------------------------------------------------------


def test_a_launch_that_was_ready_long_ago_was_not_waited_for(tmp_path: Path) -> None:
    made = Made()
    for at in range(4):  # each 100 us long, launched a millisecond ahead, 500 us apart
        made.call("aten::mm", [[4096, 4096]] * 2, 2000.0 + 600 * at, 100, issued=900.0 + 5 * at)
    found = report(tmp_path, made)
    assert found.idle["launches"] == pytest.approx(100e-6)
    assert found.idle["unknown"] == pytest.approx(400e-6)
    # A call that is still at it, such as one that loads its kernel, is launching.
    made = Made()
    for at in range(4):
        made.call("aten::mm", [[4096, 4096]] * 2, 2000.0 + 600 * at, 100, issued=1501.0 + 600 * at, host=498)
    assert report(tmp_path, made).idle["unknown"] == 0


@pytest.mark.parametrize("start", [0, None, "soon"])
def test_a_kernel_without_a_start_leaves_no_gap_with_a_cause(tmp_path: Path, start: Any) -> None:
    made = Made()
    for at in range(4):  # one after the other, the host ahead
        made.call("aten::mm", [[4096, 4096]] * 2, 1e15 + 100 * at, 100, issued=1e15 - 50 + 5 * at)
    made.events[-4]["ts"] = start
    found = report(tmp_path, made)
    assert sum(found.idle.values()) == pytest.approx(100e-6 / (found.iterations - 1))
    assert found.idle["unknown"] == pytest.approx(sum(found.idle.values()))
    assert sum(part for _, part in found.waterfall) == pytest.approx(found.seconds)


def test_numbers_that_two_processes_give_lead_to_the_nearest_call(tmp_path: Path) -> None:
    made = Made()
    for at in range(3):
        made.number = 0
        made.call("aten::mm", [[512, 512]] * 2, 1000.0 + 300 * at, 100, issued=990.0 + 300 * at)
    ran = rl.diagnosis.trace_report(made.write(tmp_path))
    assert ran.idle["host"] + ran.idle["launches"] == pytest.approx(sum(ran.idle.values()))


def test_operators_on_the_cpu_have_no_roofs_of_another_chip(tmp_path: Path) -> None:
    made = Made(None)
    for at in range(3):
        args = {"Input Dims": [[2048, 2048]] * 2, "Input type": [FP32] * 2, "External id": at + 1}
        made.slice("cpu_op", "aten::mm", 1000.0 + 200_000 * at, 190_000, **args)
    found = report(tmp_path, made, "h100-sxm")
    assert found.chip is None
    assert any("operators ran on the CPU, whose roofs are not those of h100-sxm" in note for note in found.notes)
    assert found.ops[0].bound == found.ops[0].proposal == ""
    assert report(tmp_path, made, CPU).ops[0].bound == "compute"
    # Nor is anybody sent to the profiler of another chip's kind.
    matmul = rl.workload([{"op": "gemm", "m": 2048, "n": 2048, "k": 2048}], dtype="fp32")
    for chip, cuda in (("h100-sxm", True), ("apple-m3-max", False)):
        verdict = rl.check(matmul, chip, "190 ms", trace=made.write(tmp_path))
        assert ("CUDA" in str(verdict.causes[0].fix)) == cuda
        assert not any("CUDA" in note for note in verdict.notes)


def bare(*kernels: tuple[float, float]) -> Made:
    """Kernels alone: start and duration [us]."""
    made = Made()
    for at, (start, duration) in enumerate(kernels):
        made.slice("kernel", f"kernel_{at}", start, duration, device=0, stream=7)
    return made


def test_without_host_records_a_gap_is_of_unknown_origin(tmp_path: Path) -> None:
    found = report(tmp_path, bare((0, 10), (5000, 10), (5020, 10)))
    assert {key: value for key, value in found.idle.items() if value} == pytest.approx({"unknown": 5e-3})
    (cause,) = found.causes
    assert (cause.label, cause.explains_s) == ("unknown", pytest.approx(5e-3))
    assert "ProfilerActivity.CPU" in cause.fix
    assert any("idle time is of unknown origin" in note for note in found.notes)
    verdict = rl.check("gpt2", "h100-sxm", trace=bare((0, 10), (5000, 10)).write(tmp_path), batch=1, seq=8)
    assert {one.label for one in verdict.causes} == {"unknown"}


def test_a_gap_before_a_launch_that_is_not_linked_is_of_unknown_origin(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mm", None, 1000, 10)
    made.slice("kernel", "gemm", 3000, 10, device=0, stream=7)  # no correlation
    made.call("aten::mm", None, 5010, 10, issued=5005)
    found = report(tmp_path, made)
    assert found.idle["unknown"] == pytest.approx(1990e-6)
    assert found.idle["unknown"] + found.idle["host"] + found.idle["launches"] == pytest.approx(
        sum(found.idle.values()), rel=0.05
    )


def test_without_operators_the_host_is_not_said_to_do_something_else(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mm", None, 1000, 10)
    made.call("aten::mm", None, 5000, 10, issued=4990)
    made.events[:] = [event for event in made.events if event["cat"] != "cpu_op"]
    found = report(tmp_path, made)
    assert found.idle["host"] == 0
    assert found.idle["unknown"] > 3.5e-3


def cpu_matmuls(count: int = 5, each: float = 150_000, op: str = "aten::mm") -> Made:
    made, at = Made(None), 0.0
    for _ in range(count):
        made.slice("cpu_op", op, at, each)
        at += each + 10
    return made


@pytest.mark.parametrize("op", ["aten::mm", "aten::linear", "aten::softmax", "mine::kernel"])
@pytest.mark.parametrize("chip", [None, CPU])
def test_time_of_large_operators_is_no_launch_time(tmp_path: Path, op: str, chip: Any) -> None:
    found = report(tmp_path, cpu_matmuls(op=op), chip)
    assert found.causes == ()
    assert not any("CUDA" in one.proposal for one in found.ops)
    assert any("record_shapes=True, which shows FLOPs, bytes and roofs" in note for note in found.notes)


def test_a_program_and_a_trace_without_shapes(tmp_path: Path) -> None:
    work = rl.workload([{"op": "gemm", "m": 2048, "n": 2048, "k": 2048, "count": 5}], dtype="fp32")
    path = cpu_matmuls().write(tmp_path)
    fine = rl.check(work, CPU, trace=path)  # 5 * 2 * 2048^3 FLOPs at 150 GFLOP/s take 573 ms at least
    assert (fine.verdict, fine.measured, fine.causes) == ("as_expected", pytest.approx(0.75), ())
    slow = rl.check(work, CPU, trace=cpu_matmuls(each=900_000).write(tmp_path))
    assert {one.label for one in slow.causes} == {"unknown"}
    assert "shapes, which would tell why, were not recorded" in slow.causes[0].evidence
    assert "record_shapes=True" in slow.causes[0].fix
    assert sum(part for _, part in slow.waterfall) == pytest.approx(4.5)
    # On the host of a GPU, with no calls recorded that would show a launch, it is not known where they ran.
    other = rl.check(work, "h100-sxm", trace=path)
    assert {one.label for one in other.causes} == {"unknown"}
    assert "ProfilerActivity.CUDA" in other.causes[0].fix


def test_gathers_without_shapes_are_not_said_to_be_scattered(tmp_path: Path) -> None:
    calls: list[Any] = [("aten::index", None, 500.0, {}), ("aten::gather", None, 300.0, {})]
    assert report(tmp_path, chain(Made(), calls)).causes == ()


def test_copies_of_unknown_size_are_not_said_to_be_values(tmp_path: Path) -> None:
    made = Made()
    for at in range(4):
        made.call("aten::copy_", None, 1000.0 * (at + 1), 900, kernel="Memcpy DtoH (Device -> Pinned)",
                  category="gpu_memcpy")  # fmt: skip
    (cause, *_) = report(tmp_path, made).causes
    assert (cause.label, "unknown size" in cause.evidence) == ("host_copy", True)
    assert report(tmp_path, made).ops[0].record()["bytes"] is None


@pytest.mark.parametrize("chip", ["epyc-9654", "tpu-v4", "m2-ultra"])
def test_no_advice_for_another_kind_of_device(chip: str) -> None:
    for label in ("launch_bound", "precision"):
        fix = fix_of(label, rl.chip(chip))
        assert "CUDA" not in fix.text
        assert "tf32" not in fix.text + fix.option


# --- parts add up -----------------------------------------------------------------------------------------------------


def adds_up(found: rl.diagnosis.TraceReport) -> None:
    parts = [seconds for _, seconds in found.waterfall]
    assert sum(parts) == pytest.approx(found.seconds, rel=1e-6, abs=1e-12)
    assert all(math.isfinite(part) and part >= 0 for part in parts)
    assert sum(one.seconds for one in found.ops) == pytest.approx(found.busy, rel=1e-6, abs=1e-12)
    json.dumps(found.record(), allow_nan=False)


def test_operators_of_two_threads_share_the_time(tmp_path: Path) -> None:
    made = Made(None)
    for thread, op in ((1, "aten::mm"), (2, "aten::mm"), (2, "aten::add")):
        start, duration = (2000, 1000) if op == "aten::add" else (0, 2000)
        made.slice("cpu_op", op, start, duration, **{"Input Dims": [[512, 512]] * 2, "Input type": [FP32] * 2})
        made.events[-1]["tid"] = thread
    found = report(tmp_path, made, CPU)
    adds_up(found)
    assert found.seconds == pytest.approx(3e-3)
    product = next(one for one in found.ops if one.op == "aten::mm")
    assert (product.seconds, product.lasted_s) == (pytest.approx(2e-3), pytest.approx(4e-3))
    # Two products of 2 * 512^3 FLOPs, each in 2 ms.
    assert product.flops_per_s == pytest.approx(2 * 512**3 / 2e-3)


def test_kernels_of_two_streams_share_only_the_time_in_which_both_run(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mm", [[256, 256]] * 2, 100, 100, stream=7)
    made.call("aten::add", [[256, 256]] * 2, 150, 100, stream=8)
    made.call("aten::relu", [[256, 256]], 260, 40, stream=7)
    found = report(tmp_path, made)
    adds_up(found)
    times = {one.op: one.seconds for one in found.ops}
    # 50 us alone and half of the 50 us together, each; nobody takes from the third.
    assert times == pytest.approx({"aten::mm": 75e-6, "aten::add": 75e-6, "aten::relu": 40e-6})


SMALL = rl.workload([{"op": "gemm", "m": 64, "n": 64, "k": 64}], dtype="fp32")
EVENT = st.tuples(
    st.sampled_from(["cpu_op", "cuda_runtime", "kernel", "kernel", "gpu_memcpy"]),
    st.sampled_from(["aten::mm", "aten::copy_", "aten::relu", "Memcpy DtoH (Device -> Pinned)", "cudaLaunchKernel",
                     "ncclDevKernel_AllReduce", "cudaStreamSynchronize", "gemm"]),
    st.integers(0, 2000), st.integers(0, 600), st.integers(1, 3), st.integers(0, 6),
)  # fmt: skip


@settings(max_examples=examples(120), deadline=None, derandomize=True, database=None)
@given(st.lists(EVENT, min_size=1, max_size=12), st.booleans(), st.sampled_from([0, 1, 3]))
def test_parts_of_any_trace_add_up(events: Any, cpu: bool, repeated: int) -> None:
    made = Made(None if cpu else "NVIDIA H100 80GB HBM3")
    for turn in range(repeated + 1):
        for category, name, start, duration, thread, number in events:
            args = {"External id": number, "correlation": number, "Input Dims": [[64, 64]] * 2}
            args |= {"Input type": [FP32] * 2, "device": 0, "stream": thread, "bytes": 100 * number}
            made.slice("cpu_op" if cpu else category, name, start + turn * 5000, duration, **args)
            made.events[-1]["tid"] = thread
    with tempfile.TemporaryDirectory() as folder:
        path = made.write(Path(folder))
        try:
            found = rl.diagnosis.trace_report(path)
        except rl.errors.TraceError:
            return
        adds_up(found)
        if found.seconds > 0:
            verdict = rl.check(SMALL, CPU if cpu else "h100-sxm", "3 s", trace=path)
            assert sum(part for _, part in verdict.waterfall) == pytest.approx(3)
