"""Operators on an NVIDIA GPU through PyTorch: kernel durations as the tracer reports them, with a cold cache."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from roofline.analysis.fitting import Effort, Sample
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UnknownChip, UsageError
from roofline.measurement.calibration.build import Calibration, finish
from roofline.measurement.calibration.launching import host_figure
from roofline.measurement.calibration.numpy_cpu import FLAT, GEMMS, ROWS
from roofline.measurement.calibration.timing import Call
from roofline.measurement.calibration.torch_cpu import FLAT_OPS, ROW_OPS, caller, inference

#: Launches of each operator; the median counts.
REPEATS = 7
#: Number formats of the matmuls, by our names.
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
#: Sizes of matmuls are these times those of a CPU.
SCALE = 4
#: Name of the kernel that empties the cache between launches, and which none of the operators uses.
MARK = "bitwise_not"
#: Batch, heads, key-value heads, queries, keys, width and causality of fused attention; the first few are quick ones.
ATTENTION = (
    (1, 32, 8, 2048, 2048, 128, True), (32, 32, 8, 1, 2048, 128, False), (8, 12, 12, 512, 512, 64, False),
    (4, 32, 8, 1, 8192, 128, False), (1, 16, 16, 4096, 4096, 64, True), (64, 12, 12, 128, 128, 64, False),
    (4, 32, 32, 1024, 1024, 128, True), (1, 32, 8, 1, 16384, 128, False), (16, 32, 8, 1, 512, 128, False),
    (2, 16, 16, 256, 256, 64, True), (8, 32, 8, 1024, 1024, 128, False), (128, 32, 8, 1, 1024, 128, False),
)  # fmt: skip
#: Images, channels in, edge, channels out, window, stride and groups of convolutions; the first few are quick ones.
CONVOLUTIONS = (
    (32, 64, 56, 64, 3, 1, 1), (32, 3, 224, 64, 7, 2, 1), (32, 256, 14, 1024, 1, 1, 1), (32, 144, 56, 144, 3, 1, 144),
    (32, 128, 28, 128, 3, 1, 1), (32, 512, 7, 512, 3, 1, 1), (8, 256, 56, 64, 1, 1, 1), (8, 96, 112, 96, 3, 2, 96),
    (64, 256, 14, 256, 3, 1, 1), (1, 64, 56, 64, 3, 1, 1), (32, 1024, 14, 2048, 1, 2, 1), (8, 384, 14, 384, 3, 1, 384),
)  # fmt: skip
#: How the parameters are fitted: from priors, and from figures that were fitted to many more operators before.
EFFORT = Effort(most=20, tolerance=1e-4)
AGAIN = Effort(most=8, tolerance=1e-3, pull=0.3)

Progress = Callable[[float, str], None]


def calibrate(quick: bool, progress: Progress) -> Calibration:
    """Measure the current CUDA device and describe it as a chip.

    Args:
        quick: Measure less.
        progress: Called with the share that is done and what is going on.
    """
    import torch

    flush = torch.zeros(max(2 * _cache_bytes(), 2**26) // 4, dtype=torch.int32, device="cuda")
    samples: list[Sample] = []
    tasks = operators(quick)
    for at, (op, dtype, shape) in enumerate(tasks):
        progress(0.9 * at / len(tasks), f"{op} {dtype}")
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        samples.append(Sample(op, dtype, shape, kernel_seconds(_call(op, dtype, shape), flush)))
    progress(0.9, "fit")
    chip = _chip(samples, host_figure())
    return finish(chip, samples, _remarks(quick), AGAIN if chip.efficiency.parameters else EFFORT)


def operators(quick: bool) -> list[tuple[str, str, dict[str, int]]]:
    """List what to measure: word, number format and sizes."""
    shapes = GEMMS[: 10 if quick else None]
    formats = ("bf16", "fp32") if quick else FORMATS
    tasks: list[tuple[str, str, dict[str, int]]] = [
        ("gemm", dtype, {key: max(size * SCALE, 16) for key, size in zip("mnk", shape, strict=True)})
        for dtype in formats
        for shape in shapes
    ]
    for dtype in ("bf16", "fp32"):
        tasks += [(op, dtype, {"n": 4 * n}) for op in FLAT_OPS for n in FLAT[: 3 if quick else None]]
        tasks += [(op, dtype, {"rows": 4 * r, "cols": c}) for op in ROW_OPS for r, c in ROWS[: 3 if quick else None]]
    keys = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal")
    fused = [dict(zip(keys, each, strict=True)) for each in ATTENTION[: 4 if quick else None]]
    windows = [_window(*each) for each in CONVOLUTIONS[: 4 if quick else None]]
    return [*tasks, *(("attention_sdpa", "bf16", each) for each in fused),
            *(("conv2d", "bf16", each) for each in windows)]  # fmt: skip


def _window(n: int, c_in: int, edge: int, c_out: int, r: int, stride: int, groups: int) -> dict[str, int]:
    return {"n": n, "c_in": c_in, "h": edge, "w": edge, "c_out": c_out, "r": r, "s": r, "stride": stride,
            "padding": r // 2, "groups": groups, "channels_last": True}  # fmt: skip


def _call(op: str, dtype: str, shape: Mapping[str, int]) -> Call:
    import torch

    made = partial(torch.randn, device="cuda", dtype=getattr(torch, FORMATS[dtype]))
    special = {"gemm": _gemm, "attention_sdpa": _attention, "conv2d": _convolution}
    return special[op](shape, made) if op in special else caller(op, made(tuple(shape.values())))


def _gemm(s: Mapping[str, int], made: Callable[..., Any]) -> Call:
    import torch

    a, b = made(s["m"], s["k"]), made(s["n"], s["k"])
    return lambda: torch.mm(a, b.t())


def _attention(s: Mapping[str, int], made: Callable[..., Any]) -> Call:
    from torch.nn.functional import scaled_dot_product_attention

    q = made(s["batch"], s["heads"], s["q_len"], s["head_dim"])
    k, v = (made(s["batch"], s["kv_heads"], s["kv_len"], s["head_dim"]) for _ in range(2))
    causal, grouped = bool(s["causal"]), s["heads"] != s["kv_heads"]
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _convolution(s: Mapping[str, int], made: Callable[..., Any]) -> Call:
    import torch

    x = made(s["n"], s["c_in"], s["h"], s["w"]).to(memory_format=torch.channels_last)
    weight = made(s["c_out"], s["c_in"] // s["groups"], s["r"], s["s"]).to(memory_format=torch.channels_last)
    more = {"stride": s["stride"], "padding": s["padding"], "groups": s["groups"]}
    return inference(lambda: torch.nn.functional.conv2d(x, weight, **more))


def kernel_seconds(call: Call, flush: Any) -> float:
    """Summed duration of the kernels of one call, median over launches with a cold cache [s].

    Raises:
        UsageError: The tracer saw no kernel.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"), profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(REPEATS):
            flush.bitwise_not_()
            call()
        torch.cuda.synchronize()
    events = [event for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    spans = [(event.time_range.start, event.time_range.elapsed_us(), event.name) for event in events]
    return launch_seconds([(name, micros) for _, micros, name in sorted(spans)])


def launch_seconds(kernels: Sequence[tuple[str, float]]) -> float:
    """Median over launches of the summed kernel durations; a kernel named :data:`MARK` starts a launch [s].

    Args:
        kernels: Name and duration [us] of each kernel, in the order in which they ran.

    Raises:
        UsageError: There is no kernel beside the marks.

    Example:
        >>> 1e6 * launch_seconds([("bitwise_not", 90.0), ("gemm", 5.0), ("add", 1.5)])
        6.5
    """
    launches: list[list[float]] = []
    for name, micros in kernels:
        if MARK in name:
            launches.append([])
        elif launches:
            launches[-1].append(micros)
    sums = [sum(launch) for launch in launches if launch]
    if not sums:
        raise UsageError("the tracer of PyTorch saw no kernel; is CUPTI installed?")
    return float(np.median(sums)) * 1e-6


def _cache_bytes() -> int:
    import torch

    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 2**26)


def _chip(samples: Sequence[Sample], overhead: float) -> Chip:
    """The known chip of that device name with its datasheet, or else one of the best figures that were measured."""
    import torch

    name = torch.cuda.get_device_name(0)
    prior = {"launch": min(sample.seconds for sample in samples), "host": overhead}
    try:
        known = find_chip(name)
    except UnknownChip:
        return _unknown(name, samples, prior)
    # What the chip's file knows stays where nothing is measured here, and is where the fit starts.
    efficiency = {**known.efficiency.model_dump(), **prior}
    return Chip(**{**{key: getattr(known, key) for key in Chip.model_fields}, "name": f"{known.name}-calibrated",
                   "aliases": (), "efficiency": efficiency})  # fmt: skip


def _unknown(name: str, samples: Sequence[Sample], prior: Mapping[str, float]) -> Chip:
    import torch

    properties = torch.cuda.get_device_properties(0)
    rates: dict[str, float] = {}
    for s in samples:
        if s.op == "gemm":
            rates[s.dtype] = max(rates.get(s.dtype, 0.0), 2.0 * s.shape["m"] * s.shape["n"] * s.shape["k"] / s.seconds)
    copies = [2 * (2 if s.dtype == "bf16" else 4) * s.shape["n"] / s.seconds for s in samples if s.op == "copy"]
    peaks = {dtype: {"flops": rate, "source": "best of the matmuls measured"} for dtype, rate in rates.items()}
    return Chip(
        name="-".join(name.lower().split()),
        vendor="NVIDIA",
        cores=properties.multi_processor_count,
        core_name="SM",
        vector={key: value for key, value in peaks.items() if key == "fp32"},
        matrix={key: value for key, value in peaks.items() if key != "fp32"},
        memory=[
            {"name": "memory", "capacity": float(properties.total_memory), "bandwidth": max(copies)},
            {"name": "L2", "capacity": float(_cache_bytes())},
        ],
        source="measured: the best of each figure",
        efficiency=dict(prior),
    )


def _remarks(quick: bool) -> tuple[str, ...]:
    import torch

    how = "roofline calibrate --quick" if quick else "roofline calibrate"
    return (
        f"measured {datetime.date.today().isoformat()} by {how} on {torch.cuda.get_device_name(0)}",
        f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}",
        f"kernel durations by the tracer, median of {REPEATS} launches with a cold cache",
    )
