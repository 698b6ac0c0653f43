"""Profiler files: every format, every way in which they are broken, and what is refused."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.traces.events import Kind, Signature
from roofline.traces.formats import jsonstream

#: Traces of a real machine; beside the checkout, where there are any.
REAL = Path(__file__).parents[2] / "shared" / "measurements" / "h100-sxm" / "traces"

OP: dict[str, Any] = {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 1, "ts": 1000.5, "dur": 50.25,
    "args": {"External id": 1, "Input Dims": [[8, 4], [4, 2], [[3], [5]], []], "Sequence number": 7,
             "Input type": ["c10::BFloat16", "c10::BFloat16", "TensorList", "Scalar"],
             "Input Strides": [[4, 1], [2, 1], [[1], [1]], []], "Concrete Inputs": ["", "", "", "1.5"]},
}  # fmt: skip
LAUNCH: dict[str, Any] = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 1, "ts": 1010, "dur": 3,
    "args": {"External id": 1, "correlation": 5, "cbid": 211},
}  # fmt: skip
KERNEL: dict[str, Any] = {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1020.5, "dur": 40,
    "args": {"External id": 1, "correlation": 5, "device": 0, "stream": 7, "grid": [2, 66, 1], "block": [384, 1, 1],
             "registers per thread": 168, "shared memory": 1024, "est. achieved occupancy %": 12, "queued": 0},
}  # fmt: skip
COPY: dict[str, Any] = {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 1100,
    "dur": 2,
    "args": {"device": 0, "stream": 7, "correlation": 9, "bytes": 4096},
}  # fmt: skip


def write(folder: Path, content: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def chrome_text(*events: Any, **root: Any) -> str:
    return json.dumps({**root, "traceEvents": list(events)}, indent=1)


def read(folder: Path, content: str | bytes, name: str = "trace.json") -> rl.traces.Trace:
    return rl.traces.read_trace(write(folder, content, name))


def names(trace: rl.traces.Trace) -> list[str]:
    return [trace.events.names[i] for i in trace.events.name]


def kernels(trace: rl.traces.Trace) -> np.ndarray:
    return trace.events.duration[trace.events.kind == Kind.KERNEL]


def said(trace: rl.traces.Trace, words: str) -> bool:
    return any(words in note for note in trace.notes)


# Chrome JSON of torch.profiler.


def test_every_column_of_a_trace(tmp_path: Path) -> None:
    meta = {"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": 1, "args": {"name": "python3"}}
    thread = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 1, "args": {"name": "stream 7"}}
    flow = {"ph": "s", "id": 5, "pid": 10, "tid": 1, "ts": 1010, "cat": "ac2g", "name": "ac2g"}
    instant = {"ph": "i", "name": "marker", "pid": 10, "tid": 1, "ts": 1}
    span = {**LAUNCH, "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
    trace = read(tmp_path, chrome_text(KERNEL, COPY, OP, LAUNCH, flow, instant, meta, thread, span,
                                       deviceProperties=devices))  # fmt: skip
    events = trace.events
    assert trace.format == "torch"
    assert trace.timed
    assert not trace.partial
    assert trace.notes == ()
    assert trace.devices == {0: "NVIDIA H100 80GB HBM3"}
    assert trace.processes == {10: "python3"}
    assert trace.threads == {(0, 7): "stream 7"}
    assert names(trace)[:2] == ["aten::mm", "cudaLaunchKernel"]
    assert events.kind.tolist() == [Kind.OP, Kind.RUNTIME, Kind.OTHER, Kind.KERNEL, Kind.MEMCPY]
    assert events.start == pytest.approx([0, 9.5e-6, 9.5e-6, 20e-6, 99.5e-6], abs=1e-12)
    assert events.duration == pytest.approx([50.25e-6, 3e-6, 3e-6, 40e-6, 2e-6])
    assert events.external.tolist() == [1, 1, 1, 1, -1]
    assert events.correlation.tolist() == [-1, 5, 5, 5, 9]
    assert events.device.tolist() == [-1, -1, -1, 0, 0]
    assert events.stream.tolist() == [-1, -1, -1, 7, 7]
    assert events.process[2] < -1
    assert events.bytes[4] == 4096
    assert np.isnan(events.bytes[:4]).all()
    assert events.signatures[events.signature[0]] == Signature(
        ((8, 4), (4, 2), ((3,), (5,)), ()), ("c10::BFloat16", "c10::BFloat16", "TensorList", "Scalar"),
        ((4, 1), (2, 1), ((1,), (1,)), ()), ("", "", "", "1.5"),
    )  # fmt: skip
    assert events.details[events.detail[3]] == {
        "grid": (2, 66, 1), "block": (384, 1, 1), "registers per thread": 168, "shared memory": 1024,
        "est. achieved occupancy %": 12,
    }  # fmt: skip


def test_what_is_the_same_is_kept_once(tmp_path: Path) -> None:
    trace = read(tmp_path, chrome_text(*({**each, "ts": 100 * at} for at in range(50) for each in (OP, KERNEL))))
    assert len(trace.events) == 100
    assert len(trace.events.names) == 2
    assert len(trace.events.signatures) == len(trace.events.details) == 1


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "no_suffix", "misnamed.csv"])
def test_the_content_tells_the_format(tmp_path: Path, name: str) -> None:
    text = chrome_text(OP, KERNEL).encode()
    for content in (
        text,
        gzip.compress(text),
        b"\xef\xbb\xbf" + text,
        gzip.compress(text[:50]) + gzip.compress(text[50:]),
    ):
        assert names(read(tmp_path, content, name)) == ["aten::mm", "gemm"]


def test_a_list_is_a_trace_too(tmp_path: Path) -> None:
    trace = read(tmp_path, json.dumps([OP, KERNEL]))
    assert len(trace.events) == 2
    assert trace.notes == ()


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, chrome_text(*[OP] * 5000))
    seen: list[tuple[int, int]] = []
    rl.traces.read_trace(path, progress=lambda done, whole: seen.append((done, whole)))
    assert len(seen) > 3
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_range_mirrored_on_the_device_is_no_kernel(tmp_path: Path) -> None:
    trace = read(tmp_path, chrome_text(OP, {**KERNEL, "cat": "gpu_user_annotation"}))
    assert len(trace.events) == 1
    assert said(trace, "CPU-only trace: no device events")


def test_python_frames_are_counted_and_modules_kept(tmp_path: Path) -> None:
    frame = {"ph": "X", "cat": "python_function", "name": "train.py(12): run", "pid": 1, "tid": 1, "ts": 1, "dur": 3}
    trace = read(tmp_path, chrome_text(OP, frame, frame, {**frame, "name": "nn.Module: Linear_0"}))
    assert sorted(names(trace)) == ["aten::mm", "nn.Module: Linear_0"]
    assert said(trace, "left out 2 Python frames")


def test_rocm_copies_take_their_bytes_from_the_call(tmp_path: Path) -> None:
    call = {**LAUNCH, "name": "hipMemcpyWithStream", "args": {"correlation": 9, "size": "8192", "kind": "1"}}
    copy = {**COPY, "args": {"device": 2, "stream": 0, "correlation": 9, "External id": 3, "kind": "CopyHostToDevice"}}
    trace = read(tmp_path, chrome_text(copy, call))
    assert trace.events.bytes[trace.events.kind == Kind.MEMCPY].tolist() == [8192]


def test_collectives_and_generated_kernels_keep_what_is_known_of_them(tmp_path: Path) -> None:
    nccl = {"Collective name": "allreduce", "In msg nelems": 1024, "Group size": 8, "dtype": "BFloat16", "stream": 20}
    triton = {"kernel_backend": "triton", "kernel_file": "/tmp/k.py", "grid": "grid(1024,)", "Input Dims": [[4]]}
    trace = read(tmp_path, chrome_text({**KERNEL, "args": nccl}, {**OP, "args": triton}))
    found = [trace.events.details[i] for i in trace.events.detail]
    assert {"kernel_backend": "triton", "kernel_file": "/tmp/k.py", "grid": "grid(1024,)"} in found
    assert {key: value for key, value in nccl.items() if key != "stream"} in found


def test_old_categories(tmp_path: Path) -> None:
    trace = read(
        tmp_path, chrome_text({**OP, "cat": "Operator"}, {**KERNEL, "cat": "Kernel"}, {**COPY, "cat": "Memcpy"})
    )
    assert trace.events.kind.tolist() == [Kind.OP, Kind.KERNEL, Kind.MEMCPY]


def test_two_processes_and_two_devices_are_noted(tmp_path: Path) -> None:
    other = {**KERNEL, "args": {**KERNEL["args"], "device": 1}}
    trace = read(
        tmp_path, chrome_text(OP, {**OP, "pid": 11}, KERNEL, other, distributedInfo={"rank": 3, "world_size": 8})
    )
    assert said(trace, "2 devices: 0, 1")
    assert said(trace, "2 host processes")
    assert said(trace, "rank 3 of 8")


def test_the_device_may_stand_in_the_label_of_its_process(tmp_path: Path) -> None:
    label = {"ph": "M", "name": "process_labels", "pid": 70000, "tid": 0, "ts": 1, "args": {"labels": "GPU 3"}}
    trace = read(tmp_path, chrome_text({**KERNEL, "pid": 70000, "args": {}}, label))
    assert trace.events.device.tolist() == [3]
    assert trace.events.stream.tolist() == [7]


def test_names_in_utf8_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "CHUNK", 7)
    content = json.dumps([{**KERNEL, "name": "größe→µ"}, {**KERNEL, "name": 'a\\b "q" \u00e9'}], ensure_ascii=False)
    assert names(read(tmp_path, content)) == ["größe→µ", 'a\\b "q" é']


def test_shapes_that_were_not_recorded_are_noted(tmp_path: Path) -> None:
    trace = read(tmp_path, chrome_text({**OP, "args": {"External id": 1}}, KERNEL))
    assert said(trace, "no shapes were recorded; profile with record_shapes=True")


# Repairs.


def test_trailing_comma_and_no_closing_bracket(tmp_path: Path) -> None:
    # https://github.com/tarides/runtime_events_tools/issues/121
    trace = read(tmp_path, """[
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 1, "ts": 1000, "dur": 50},
{"ph": "X", "cat": "kernel", "name": "gemm_kernel", "pid": 0, "tid": 7, "ts": 1010, "dur": 40},
{"ph": "X", "cat": "kernel", "name": "add_kernel", "pid": 0, "tid": 8, "ts": 1030, "dur": 40},
""")  # fmt: skip
    assert len(trace.events) == 3
    assert said(trace, "the closing bracket is missing")
    assert said(trace, "a trailing comma")
    assert not trace.partial


def test_unescaped_quotes(tmp_path: Path) -> None:
    # https://github.com/pytorch/kineto/pull/1459
    text = """{"schemaVersion": 1, "traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 1, "ts": 1000, "dur": 50, "args": {"External": 1}},
{"ph": "X", "cat": "python_function", "name": "{"device": "cpu", "dtype": "float32"}(12): run", "pid": 10, "tid": 1,
 "ts": 1001, "dur": 3, "args": {}},
{"ph": "X", "cat": "kernel", "name": "gemm_kernel", "pid": 0, "tid": 7, "ts": 1010, "dur": 40, "args": {"device": 0}}
]}"""
    trace = read(tmp_path, text)
    assert names(trace) == ["aten::mm", "gemm_kernel"]
    assert said(trace, "repaired 1 event with an unescaped quote")
    assert said(trace, "begins at line 3, column 50")
    assert said(trace, "unescaped quote in event name; re-export or strip python_function events")
    assert names(read(tmp_path, text.replace("python_function", "kernel")))[1] == (
        '{"device": "cpu", "dtype": "float32"}(12): run'
    )


def test_an_event_beyond_repair_is_skipped(tmp_path: Path) -> None:
    broken = '{"ph": "X", "cat": "kernel", "ts": 5, "dur": , "name": "lost", "args": {"a": {"b": 1}}}'
    for events in ([broken, KERNEL], [KERNEL, broken], [KERNEL, broken, {**KERNEL, "ts": 1120}]):
        text = ",\n".join(event if isinstance(event, str) else json.dumps(event) for event in events)
        for content in (f"[{text}]", f'{{"traceEvents": [{text}], "traceName": "x"}}'):
            trace = read(tmp_path, content)
            assert set(names(trace)) == {"gemm"}
            assert len(trace.events) == len(events) - 1
            assert said(trace, "skipped 1 broken event")
            assert said(trace, "begins at line")


def test_trailing_commas_within_events(tmp_path: Path) -> None:
    text = json.dumps([KERNEL, {**KERNEL, "ts": 1120}]).replace('"queued": 0}', '"queued": 0,}')
    trace = read(tmp_path, text)
    assert len(trace.events) == 2
    assert said(trace, "repaired 2 events with a trailing comma")


def test_a_file_cut_within_an_event_keeps_the_complete_ones(tmp_path: Path) -> None:
    text = chrome_text(OP, LAUNCH, KERNEL)
    trace = read(tmp_path, text[: text.index('"gemm"') + 3])
    assert names(trace) == ["aten::mm", "cudaLaunchKernel"]
    assert trace.partial
    assert said(trace, "the file is cut at line")
    between = read(tmp_path, text[: text.index('"gemm"')].rsplit("}", 1)[0] + "}")
    assert between.partial


def test_a_cut_or_damaged_gzip_stream_keeps_what_came_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{**KERNEL, "ts": float(ts)} for ts in rng.uniform(0, 1e6, 5000)]
    packed = gzip.compress(chrome_text(*rows).encode())
    trace = read(tmp_path, packed[: len(packed) // 2])
    assert 500 < len(trace.events) < 5000
    assert trace.partial
    assert said(trace, "the gzip stream is cut")
    damaged = packed[: len(packed) // 2] + b"\xff" * 100 + packed[len(packed) // 2 + 100 :]
    trace = read(tmp_path, damaged)
    assert trace.partial or trace.notes


def test_missing_arguments_and_durations(tmp_path: Path) -> None:
    # https://github.com/facebookresearch/HolisticTraceAnalysis/issues/104
    trace = read(tmp_path, """{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [
{"ph": "M", "name": "process_name", "pid": 10, "args": {"name": "python"}},
{"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 10, "tid": 1, "ts": 5, "dur": 2},
{"ph": "X", "cat": "kernel", "name": "relu_kernel", "pid": 0, "tid": 7, "ts": 6, "dur": 1.5},
{"ph": "X", "cat": "kernel", "name": "no_duration_kernel", "pid": 0, "tid": 7, "ts": 9},
{"ph": "i", "name": "marker", "pid": 10, "tid": 1, "ts": 10, "s": "t"}]}""")  # fmt: skip
    assert kernels(trace) == pytest.approx([1.5e-6])
    assert said(trace, "skipped 1 kernel without a duration")
    assert trace.events.stream.tolist() == [-1, 7]
    cpu = read(
        tmp_path, chrome_text({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "ts": 1000, "dur": 50})
    )
    assert said(cpu, "CPU-only trace: no device events")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"dur": -5}, "skipped 1 kernel with a negative duration"),
        ({"dur": None}, "skipped 1 kernel without a duration"),
        ({"dur": "soon"}, "skipped 1 kernel whose duration is no number"),
        ({"dur": float("nan")}, "skipped 1 kernel whose duration is no number"),
        ({"ts": float("-inf")}, "skipped 1 kernel without a start"),
        ({"ts": float("inf")}, "skipped 1 kernel without a start (40 us)"),
        ({"ts": [1]}, "skipped 1 kernel without a start"),
        ({"dur": 10**400}, "skipped 1 kernel whose duration is no number"),
        ({"ph": "B"}, "skipped 1 begin or end"),
    ],
)
def test_events_that_cannot_be_used_are_counted(tmp_path: Path, change: dict[str, Any], note: str) -> None:
    trace = read(tmp_path, chrome_text(OP, {**KERNEL, **change}))
    assert len(trace.events) == 1
    assert said(trace, note)


def test_times_as_texts(tmp_path: Path) -> None:
    trace = read(tmp_path, chrome_text({**KERNEL, "ts": "1020.5", "dur": "40"}, {**OP, "pid": "10", "tid": "main"}))
    assert kernels(trace) == pytest.approx([40e-6])
    assert said(trace, "read 1 event whose times are texts")
    assert trace.events.process.tolist() == [10, 0]


@pytest.mark.parametrize("value", [[], {}, "x", None, 1e300, 10**30, True, [[[]]], float("nan"), "9" * 5000])
def test_odd_values_anywhere_do_no_harm(tmp_path: Path, value: Any) -> None:
    for key in KERNEL:
        read(tmp_path, chrome_text(OP, {**KERNEL, key: value}))
    for base in (KERNEL, OP, LAUNCH):
        for key in [*base["args"], "bytes", "size"]:
            read(tmp_path, chrome_text(COPY, {**base, "args": {**base["args"], key: value}}))
    for key in ("deviceProperties", "distributedInfo", "displayTimeUnit"):
        assert len(read(tmp_path, chrome_text(OP, value, **{key: value})).events) == 1
    meta = {"ph": "M", "name": "process_labels", "pid": value, "args": {"labels": value, "name": value}}
    read(tmp_path, chrome_text(OP, meta, {**meta, "name": "thread_name", "tid": value}, {**meta, "args": value}))


def test_a_number_too_long_for_python_is_a_broken_event(tmp_path: Path) -> None:
    text = json.dumps([OP, {**KERNEL, "dur": 0}, KERNEL]).replace('"dur": 0', f'"dur": {"9" * 5000}')
    trace = read(tmp_path, text)
    assert len(trace.events) == 2
    assert said(trace, "skipped 1 broken event")


def test_more_events_than_anybody_looks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.traces.events.MAX_EVENTS", 10)
    trace = read(tmp_path, chrome_text(*({**OP, "ts": 100 * at} for at in range(25))))
    assert len(trace.events) == 10
    assert trace.partial
    assert said(trace, "stopped after 10 events")


# Refusals.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b" \n\n", "an empty file"),
        (gzip.compress(b"", mtime=0), "an empty file"),
        (b"\x1f\x8b\x08\x00rubbish", "gzip"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "packed with gzip twice"),
        (b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}', "config.json of Hugging Face"),
        (b'{"log": {"version": "1.2", "entries": []}}', "HAR file"),
        (b'{"cells": [], "nbformat": 4}', "Jupyter notebook"),
        (b'{"a": 1, "b": 2}', "JSON of another tool (its root has a, b)"),
        (b"{}", "JSON of another tool (its root has nothing)"),
        (b'{"schemaVersion": 1, "devic', "before the first event"),
        (b'{"schemaVersion" 1 2', "cut at line 1"),
        (b'{"schemaVersion": nope, "traceEvents": []}      ', "not valid JSON at line 1, column 19 (byte 18)"),
        (b'{"traceEvents": []}', "no events with a duration"),
        (b"[]", "no events with a duration"),
        (b"[1, 2, 3]", "no events with a duration"),
        (json.dumps([{**KERNEL, "dur": None}]).encode(), "skipped 1 kernel without a duration"),
        (b"[" * 100_000, "nested too deeply at line 1"),
        (b'{"traceEvents": [' + b'{"a":' * 100_000, "nested too deeply at line 1"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.", "a pickle"),
        (b"PK\x03\x04\x00\x00", "a zip archive"),
        (b"SQLite format 3\x00\x10\x00", "nsys stats"),
        (b"\x08\x07\x12\x07pytorch\x1a\x052.0.0:", "an ONNX model"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "zstd"),
        (bytes(range(256)), "not text (a zero byte at 0)"),
        (b"hello\nworld\n", "neither JSON nor a table"),
        (b"op_nam,shape,value\nmm,1,2\n", "a header of no known table: op_nam, shape, value; expected nsys"),
        (b"op_nam,shape,value\nmm,1,2\n", "did you mean op_name"),
        (b"name,time_us\n", "no events below the header of a table of times"),
        (b"name,time\nmm,5\n", "line 2: column 'time' has no unit"),
        (b'name,time_us\n"' + b"x" * 200_000, "not CSV text"),
    ],
)  # fmt: skip
def test_refusals_are_one_line_that_names_the_file(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(rl.errors.TraceError) as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert words in message
    assert "trace.json" in message
    assert "\n" not in message


def test_no_such_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.TraceError, match=r"absent\.json: cannot be read: No such file"):
        rl.traces.read_trace(tmp_path / "absent.json")
    with pytest.raises(rl.errors.TraceError, match="a directory; name one file"):
        rl.traces.read_trace(tmp_path)
    with pytest.raises(rl.errors.TraceError, match="no file can be called so"):
        rl.traces.read_trace("a\0b")


def test_a_single_value_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    for content in (b'[{"ph": "X", "name": "' + b"x" * 9 * 2**20, b'{"a": "' + b"x" * 9 * 2**20):
        with pytest.raises(rl.errors.TraceError, match="a single value of more than"):
            read(tmp_path, content)


# Tables of Nsight Systems.

GPU_TRACE = """NOTICE: Existing SQLite export found: run.sqlite
Processing [run.sqlite] with [cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),\
Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
5000,2048,11,,,,,,,,,,4.194,2048.000,Pageable,Device,NVIDIA H100 80GB HBM3 (1),1,,7,[CUDA memcpy Host-to-Device]
8000,1500,12,66,2,1,384,1,1,168,0.000,0.198,,,,,NVIDIA H100 80GB HBM3 (1),1,,7,"void gemm<float, 4>(int)"
9900,100,13,,,,,,,,,,0.001,1.0,Device,,NVIDIA H100 80GB HBM3 (1),1,,7,[CUDA memset]
"""


def test_nsys_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, GPU_TRACE, "report.csv")
    events = trace.events
    assert trace.format == "nsys-trace"
    assert trace.timed
    assert trace.devices == {1: "NVIDIA H100 80GB HBM3"}
    assert events.kind.tolist() == [Kind.MEMCPY, Kind.KERNEL, Kind.MEMSET]
    assert events.start == pytest.approx([0, 3e-6, 4.9e-6])
    assert events.duration == pytest.approx([2048e-9, 1500e-9, 100e-9])
    assert events.bytes[0] == pytest.approx(4.194e6)
    assert np.isnan(events.bytes[1])
    assert names(trace)[1] == "void gemm<float, 4>(int)"
    assert events.correlation.tolist() == [11, 12, 13]
    assert events.stream.tolist() == [7, 7, 7]
    assert events.details[events.detail[1]] == {
        "grid": (66, 2, 1), "block": (384, 1, 1), "registers per thread": 168, "shared memory": 198000,
    }  # fmt: skip


def test_nsys_units_are_those_of_the_header(tmp_path: Path) -> None:
    text = GPU_TRACE.replace("Start (ns),Duration (ns)", "Start (us),Duration (usec)").replace(
        "Bytes (MB)", "Bytes (KB)"
    )
    trace = read(tmp_path, text.replace("Throughput (MB/s)", "Throughput (MBps)"))
    assert trace.events.duration == pytest.approx([2048e-6, 1500e-6, 100e-6])
    assert trace.events.bytes[0] == pytest.approx(4194)


def test_a_table_cut_within_a_row_keeps_the_complete_ones(tmp_path: Path) -> None:
    trace = read(tmp_path, GPU_TRACE[: GPU_TRACE.index("9900") + 10])
    assert len(trace.events) == 2
    assert trace.partial
    assert said(trace, "the last row is cut (line 6): read what comes before")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_nsys_sum(tmp_path: Path, encoding: str, delimiter: str) -> None:
    text = (
        "Time (%),Total Time (nsec),Instances,Avg (nsec),Med (nsec),Min (nsec),Max (nsec),StdDev (nsec),Name\n"
        "90.0,9000,3,3000.0,3000.0,2900,3100,100.0,gemm\n10.0,1000,1,1000.0,1000.0,1000,1000,0.0,add\n"
    ).replace(",", delimiter)
    trace = read(tmp_path, text.encode(encoding))
    assert trace.format == "nsys-sum"
    assert not trace.timed
    assert kernels(trace) == pytest.approx([9e-6, 1e-6])
    assert trace.events.count.tolist() == [3, 1]
    assert trace.events.details[0]["average"] == pytest.approx(3e-6)


def test_nsys_sum_behind_another_report(tmp_path: Path) -> None:
    text = (
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,5000,2,2500.0,cudaLaunchKernel\n\n"
        "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n100.0,9000,3,3000.0,2900,3100,gemm\n\n"
        "Time (%),Total Time (ns),Count,Avg (ns),Operation\n100.0,700,1,700.0,[CUDA memcpy Host-to-Device]\n"
    )
    trace = read(tmp_path, text)
    assert names(trace) == ["gemm"]
    assert trace.events.details[0]["average"] == pytest.approx(3e-6)
    assert said(trace, "passed over nsys cuda_api_sum")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Time (%),Total Time (ns),Num Calls,Avg (ns),Name", "cuda_api_sum"),
        ("Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Operation", "cuda_gpu_mem_time_sum"),
        ("Total (MB),Count,Avg (MB),Operation", "cuda_gpu_mem_size_sum"),
    ],
)
def test_nsys_tables_without_kernels_are_named(tmp_path: Path, header: str, name: str) -> None:
    with pytest.raises(
        rl.errors.TraceError, match=f"an nsys {name}.* table, which holds no kernels; expected cuda_gpu_trace"
    ):
        read(tmp_path, f"{header}\n1,2,3,4,5,6\n")


# Counters of Nsight Compute: https://github.com/meta-pytorch/KernelAgent/pull/141

NCU_LONG = """==PROF== Connected to process 4242 (/usr/bin/python3)
==PROF== Profiling "gemm_kernel": 0%....100% - 2 passes
==WARNING== Unable to deploy section files under HOME
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"""
NCU_ROW = (
    '"{0}","4242","python3","127.0.0.1","{1}","1","7","(128, 1, 1)","(64, 1, 1)","0","8.0","Command line metrics",'
    '"{2}","{3}","{4}"\n'
)
NCU_ROWS = (
    ("0", "gemm_kernel", "dram__bytes.sum", "Mbyte", "1,234.50"),
    ("0", "gemm_kernel", "gpu__time_duration.sum", "usecond", "1,003.20"),
    ("1", "add_kernel", "dram__bytes.sum", "Kbyte", "512.00"),
    ("1", "add_kernel", "gpu__time_duration.sum", "nsecond", "980"),
)
NCU_WIDE = """"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes.sum",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","","","usecond","Mbyte","%"
"0","4242","gemm_kernel","(128, 1, 1)","(64, 1, 1)","1003.20","1234.50","71.25"
"1","4242","add_kernel","(128, 1, 1)","(64, 1, 1)","0.98","0.512","n/a"
"""


def ncu_long(*rows: tuple[str, ...]) -> str:
    return NCU_LONG + "".join(NCU_ROW.format(*row) for row in rows)


def swap(text: str) -> str:
    return text.translate(str.maketrans(",.", ".,"))


LOCALE = tuple((*row[:4], swap(row[4])) for row in NCU_ROWS)


@pytest.mark.parametrize("text", [ncu_long(*NCU_ROWS), NCU_WIDE, ncu_long(*LOCALE)], ids=["long", "wide", "locale"])
def test_ncu(tmp_path: Path, text: str) -> None:
    trace = read(tmp_path, text, "ncu.csv")
    assert trace.format == "ncu"
    assert not trace.timed
    assert names(trace) == ["gemm_kernel", "add_kernel"]
    assert kernels(trace) == pytest.approx([1003.2e-6, 0.98e-6], rel=1e-9)
    assert trace.events.bytes == pytest.approx([1234.5e6, 512e3], rel=1e-9)
    assert trace.events.bytes[0] / kernels(trace)[0] == pytest.approx(1230.56e9, rel=1e-4)
    assert trace.events.details[0]["grid"] == (64, 1, 1)
    assert trace.events.details[0]["dram__bytes.sum"] == pytest.approx(1234.5e6)


def test_ncu_missing_is_not_zero(tmp_path: Path) -> None:
    trace = read(tmp_path, NCU_WIDE)
    key = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    assert trace.events.details[0][key] == 71.25
    assert key not in trace.events.details[1]
    assert said(trace, "1 value missing (n/a)")


def test_ncu_reads_and_writes_make_the_bytes(tmp_path: Path) -> None:
    rows = (
        ("0", "k", "dram__bytes_read.sum", "Mbyte", "1.215.000,00"), ("0", "k", "dram__bytes_write.sum", "byte", "500"),
        ("0", "k", "gpu__time_duration.sum", "ms", "2,5"),
        ("0", "k", "dram__cycles_elapsed.avg.per_second", "Ghz", "2,6"),
        ("1", "no time", "dram__bytes.sum", "byte", "5"),
    )  # fmt: skip
    trace = read(tmp_path, ncu_long(*rows))
    assert trace.events.bytes == pytest.approx([1.215e12 + 500])
    assert kernels(trace) == pytest.approx([2.5e-3])
    assert trace.events.details[0]["dram__cycles_elapsed.avg.per_second"] == pytest.approx(2.6e9)
    assert said(trace, "skipped 1 row without gpu__time_duration.sum")
    assert said(trace, "decimal comma")


def test_ncu_with_fewer_columns(tmp_path: Path) -> None:
    text = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name","Metric Name",'
        '"Metric Unit","Metric Value"\n'
        '"0","1","p","h","gemm","1","7","GPU Speed Of Light Throughput","Duration","us","12.5"\n'
    )
    assert kernels(read(tmp_path, text)) == pytest.approx([12.5e-6])


# Tenstorrent: https://github.com/tenstorrent/tt-metal/pull/13108


def test_tt_perf(tmp_path: Path) -> None:
    trace = read(tmp_path, """OP CODE,DEVICE ARCH,DEVICE ID,CORE COUNT,AVAILABLE WORKER CORE COUNT,MATH FIDELITY,\
DEVICE KERNEL DURATION [ns],HOST START TS
Matmul,wormhole_b0,0,64,64,HiFi3,100000,20
Matmul,wormhole_b0,1,64,64,HiFi3,110000,21
(torch) add,,,,,,,10
""")  # fmt: skip
    assert trace.format == "tt-perf"
    assert kernels(trace) == pytest.approx([110000e-9], rel=1e-9)
    assert trace.devices == {0: "wormhole_b0", 1: "wormhole_b0"}
    assert trace.events.details[trace.events.detail[0]] == {
        "math fidelity": "HiFi3",
        "cores": 64,
        "available cores": 64,
        "devices": 2,
    }
    assert said(trace, "1 operation on 2 devices: the slowest device counts")
    assert said(trace, "1 host operation without device time")


def test_tt_perf_shapes_and_host_time(tmp_path: Path) -> None:
    trace = read(tmp_path, """OP CODE,DEVICE ID,DEVICE KERNEL DURATION [ns],HOST DURATION [ns],INPUT_0_W_PAD[LOGICAL],\
INPUT_0_Z_PAD[LOGICAL],INPUT_0_Y_PAD[LOGICAL],INPUT_0_X_PAD[LOGICAL],INPUT_0_DATATYPE
Matmul,0,100,5,1[1],1[1],32[7],64[64],BFLOAT16
(torch) add,,,900,,,,,
Softmax,0,200,5,1[1],1[1],32[7],64[64],BFLOAT16
""")  # fmt: skip
    assert kernels(trace) == pytest.approx([100e-9, 200e-9])
    assert trace.events.signatures == (Signature(((1, 1, 7, 64),), ("BFLOAT16",)),)
    assert trace.events.duration[trace.events.kind == Kind.OP] == pytest.approx([900e-9])


def test_tt_perf_report(tmp_path: Path) -> None:
    trace = read(tmp_path, "ID,Bound,OP Code,Device Time,Op-to-Op Gap,Cores\n1,DRAM,Matmul,41.5,3,56\n")
    assert kernels(trace) == pytest.approx([41.5e-6])
    assert trace.events.details[0] == {"cores": 56, "gap": pytest.approx(3e-6)}


# Tables that a person wrote.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("op,time_us\nmm,41\n", 41e-6),
        ("name,duration (ms)\nmm,0.5\n", 0.5e-3),
        ("op,dtype,shape,wall_us,kernel_us\nmm,bf16,x,99,41\n", 41e-6),
        ("Name,Self CPU,Self CUDA,# of Calls\nmm,1.000ms,41.000us,4\n", 41e-6),
        ("kernel,p50_us\nmm,7\n", 7e-6),
        ("op,s\nmm,2\n", 2.0),
        ("layer;latency [ns]\nmm;7\n", 7e-9),
        ("# made by hand\n\nop,time_us\nmm,41\n", 41e-6),
    ],
)
def test_a_table_of_times(tmp_path: Path, text: str, seconds: float) -> None:
    trace = read(tmp_path, text, "times.csv")
    assert trace.format == "table"
    assert names(trace) == ["mm"]
    assert trace.events.duration == pytest.approx([seconds])


def test_a_table_keeps_its_other_columns(tmp_path: Path) -> None:
    trace = read(tmp_path, "op,dtype,shape,total_time_us,count\nmm,bf16,8x8,400,4\nrelu,bf16,,-,1\n")
    assert trace.events.details[0] == {"dtype": "bf16", "shape": "8x8", "count": "4"}
    assert trace.events.count.tolist() == [4]
    assert said(trace, "skipped 1 row without a name and a time")


# Real traces, large ones, and damage at any place.


@pytest.mark.skipif(not REAL.is_dir(), reason="no measurements beside the checkout")
def test_real_traces() -> None:
    for path in sorted(REAL.glob("*.json.gz")):
        trace = rl.traces.read_trace(path)
        raw = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        for category, kind in (("cpu_op", Kind.OP), ("kernel", Kind.KERNEL), ("gpu_memcpy", Kind.MEMCPY)):
            wanted = [event["dur"] for event in raw if event.get("cat") == category]
            found = trace.events.duration[trace.events.kind == kind]
            assert len(found) == len(wanted), (path.name, category)
            assert found.sum() == pytest.approx(sum(wanted) * 1e-6)
        assert trace.devices == {0: "NVIDIA H100 80GB HBM3"}
        assert not trace.partial
        assert set(trace.notes) <= {"CPU-only trace: no device events"}


def write_large(path: Path, events: int) -> None:
    rows = [json.dumps({**event, "ts": 0})[:-1] for event in (OP, LAUNCH, KERNEL, COPY)]
    with path.open("w") as stream:
        stream.write('{"traceEvents": [\n')
        stream.writelines(f'{rows[i % 4]}, "ts": {1000 + i}.125, "dur": 1}},\n' for i in range(events))
        stream.write("{}]}")


def test_a_hundred_thousand_events(tmp_path: Path) -> None:
    write_large(tmp_path / "large.json", 100_000)
    trace = rl.traces.read_trace(tmp_path / "large.json")
    assert np.bincount(trace.events.kind).tolist() == [25000, 0, 25000, 0, 25000, 25000]
    assert trace.events.start[-1] == pytest.approx(99999e-6)
    assert trace.notes == ()


def test_memory_does_not_follow_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    write_large(path, 150_000)
    code = (
        "import resource, sys, roofline as rl; rl.traces.read_trace; "
        "peak = lambda: resource.getrusage(0).ru_maxrss // 1024; "
        "before = peak(); rl.traces.read_trace(sys.argv[1]); print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert path.stat().st_size > 35e6
    assert int(done.stdout) < 45


def test_a_bomb_of_zeros_is_unpacked_bit_by_bit(tmp_path: Path) -> None:
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + json.dumps(KERNEL).encode() + b"]", 9)
    assert len(bomb) < 100_000
    assert len(read(tmp_path, bomb).events) == 1


SAMPLES = (
    chrome_text(OP, LAUNCH, KERNEL, COPY, deviceProperties=[{"id": 0, "name": "H100"}]).encode(),
    json.dumps([OP, LAUNCH, KERNEL, COPY]).encode(),
    gzip.compress(chrome_text(OP, LAUNCH, KERNEL, COPY).encode(), mtime=0),
    GPU_TRACE.encode(), ncu_long(*NCU_ROWS).encode(), NCU_WIDE.encode(),
    b"OP CODE,DEVICE ID,DEVICE KERNEL DURATION [ns]\nMatmul,0,100\nMatmul,1,110\nadd,,\n",
    b"name,time_us,count\nmm,41,1\nrelu,3,1\n",
    b"Time (%),Total Time (ns),Instances,Avg (ns),Name\n90.0,9000,3,3000.0,gemm\n",
)  # fmt: skip
MANY = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def survives(folder: Path, content: bytes) -> rl.traces.Trace | None:
    """A trace, or a refusal of one line; anything else fails the test."""
    try:
        trace = read(folder, content)
    except rl.errors.TraceError as error:
        if "\n" in str(error):
            raise
        return None
    assert len(trace.events) > 0
    assert np.isfinite(trace.events.duration).all()
    assert (trace.events.duration >= 0).all()
    assert (np.diff(trace.events.start) >= 0).all()
    return trace


@MANY
@given(sample=st.sampled_from(SAMPLES), share=st.floats(0, 1))
def test_a_file_cut_anywhere_is_a_trace_or_a_refusal(tmp_path: Path, sample: bytes, share: float) -> None:
    survives(tmp_path, sample[: int(share * len(sample))])


@MANY
@given(sample=st.sampled_from(SAMPLES), data=st.data())
def test_flipped_bytes_are_a_trace_or_a_refusal(tmp_path: Path, sample: bytes, data: st.DataObject) -> None:
    content = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    survives(tmp_path, bytes(content))


@MANY
@given(content=st.one_of(st.binary(max_size=200), st.text('{}[]",:abc123.\n -', max_size=200).map(str.encode)))
def test_rubbish_is_refused(tmp_path: Path, content: bytes) -> None:
    survives(tmp_path, content)


# Limits.


@pytest.mark.parametrize(("head", "row", "message"), [
    ("[", "{},", "stopped after 50 elements that are no operators or kernels"),
    ("[", '{"ph":"M","name":"process_name","pid":1,"args":{"name":"x"}},', "stopped after 50 elements"),
    ("{", '"a":1,', "more than 50 keys in its root"),
    ("", "kernel;\n", "a header of no known table|neither JSON nor a table"),
])  # fmt: skip
def test_endless_text_without_events_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, row: str, message: str
) -> None:
    for name in ("chrome.MAX_OTHERS", "chrome.MAX_KEYS", "tables.SEARCHED"):
        monkeypatch.setattr(f"roofline.traces.formats.{name}", 50)
    with pytest.raises(rl.errors.TraceError, match=message):
        read(tmp_path, head + row * 100)


@pytest.mark.parametrize("text", [
    "name,time_us\n" + "mm,1\n" * 90, json.dumps([OP, *({**KERNEL, "ts": 100 * at} for at in range(90))]),
    "Start (ns),Duration (ns),CorrId,Strm,Name\n" + "".join(f"{at}0,5,1,7,k\n" for at in range(90)),
    "OP CODE,DEVICE ID,DEVICE KERNEL DURATION [ns]\n" + "mm,0,5\n" * 90,
])  # fmt: skip
def test_rows_beyond_the_limit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for name in ("events", "formats.tables"):
        monkeypatch.setattr(f"roofline.traces.{name}.MAX_EVENTS", 50)
    trace = read(tmp_path, text)
    assert len(trace.events) == 50
    assert trace.partial
    assert said(trace, "stopped after 50")


def test_distinct_names_take_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.traces.events.MAX_ROOM", 5000)
    trace = read(tmp_path, "name,time_us\n" + "".join(f"kernel_{at},1\n" for at in range(900)))
    assert len(trace.events) < 50
    assert said(trace, "whose names and arguments take more than 5,000 bytes")


def test_what_unfolds_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.traces.formats.bytestream.MAX_UNFOLDED", 2**16)
    with pytest.raises(rl.errors.TraceError, match="unfolds to more than 65,536 bytes and 200 times its size"):
        read(tmp_path, gzip.compress(b"[" + b" " * 2_000_000))
