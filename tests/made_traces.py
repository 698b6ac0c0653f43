"""Traces as torch.profiler exports them, made call by call with known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

H100 = "NVIDIA H100 80GB HBM3"
BF16, FP32 = "c10::BFloat16", "float"


class Made:
    """A document that grows a call at a time; times in microseconds.

    Each call is an operator on the host, a launch inside it and a kernel on the device. The host is always ahead, or
    begins a call where it is told to.
    """

    def __init__(self, device: str | None = H100) -> None:
        self.events: list[dict[str, Any]] = []
        self.document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": self.events}
        if device is not None:
            self.document["deviceProperties"] = [{"id": 0, "name": device}]
        self.number = 0

    def slice(self, category: str, name: str, start: float, duration: float, **args: Any) -> None:
        """One event with a duration."""
        on_device = category in ("kernel", "gpu_memcpy", "gpu_memset")
        where = {"pid": args.get("device", 0), "tid": args.get("stream", 7)} if on_device else {"pid": 100, "tid": 100}
        what = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "args": args}
        self.events.append(what | where)

    def call(
        self,
        op: str,
        dims: Any,
        start: float,
        duration: float,
        *,
        issued: float | None = None,
        dtype: str = BF16,
        kernel: str = "a_kernel",
        category: str = "kernel",
        host: float = 4.0,
        concrete: Any = None,
        stream: int = 7,
        device: int = 0,
        **more: Any,
    ) -> float:
        """An operator with one kernel; when the kernel ends.

        Args:
            op: The operator.
            dims: Shapes of its arguments; ``None`` leaves them out.
            start: Of the kernel.
            duration: Of the kernel.
            issued: When the host launches it; long before where absent.
            dtype: Of all tensors.
            kernel: Its name.
            category: Of the device event.
            host: How long the operator takes on the host.
            concrete: Values of arguments that are no tensors.
            stream: Of the device.
            device: Number of the device.
            more: Arguments of the device event.
        """
        self.number += 1
        at = start - 50 if issued is None else issued
        args: dict[str, Any] = {"External id": self.number}
        if dims is not None:
            values = concrete or ["" for _ in dims]
            plain = ["ScalarList" if value.startswith("[") else "Scalar" for value in values]
            args |= {
                "Input Dims": dims,
                "Input type": [dtype if shape else word for shape, word in zip(dims, plain, strict=True)],
                "Input Strides": [strides(shape) for shape in dims],
                "Concrete Inputs": values,
            }
        self.slice("cpu_op", op, at - 1, host, **args)
        both = {"External id": self.number, "correlation": self.number}
        self.slice("cuda_runtime", "cudaLaunchKernel", at, 1.0, **both)
        self.slice(category, kernel, start, duration, **both, device=device, stream=stream, **more)
        return start + duration

    def collective(
        self, name: str, start: float, duration: float, *, rank: int = 0, ranks: Any = (0, 1), group: str = "0",
        elements: int = 1024, sequence: int | None = None, stream: int = 20, **more: Any,
    ) -> float:  # fmt: skip
        """A collective on its own stream, as PyTorch 2.11 records those of NCCL; when it ends.

        The names of the facts are those of torch/csrc/profiler/util.h, and Kineto copies them from the operator to the
        kernel (libkineto/src/output_json.cpp); ``Seq`` stays with the operator, and is recorded by newer ones.
        """
        facts = {"Collective name": name, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16",
                 "Group size": len(ranks), "Process Group Name": group, "Process Group Ranks": str(list(ranks)),
                 **more}  # fmt: skip
        kernel = f"ncclDevKernel_{name}_Sum_bf16_RING_LL"
        end = self.call("record_param_comms", None, start, duration, kernel=kernel, stream=stream)
        self.events[-1]["args"] |= facts
        self.events[-3]["args"] |= facts | {"Rank": rank} | ({} if sequence is None else {"Seq": sequence})
        return end

    def memory(self, at: float, size: int, total: int, address: int, device: int = 0, thread: int = 100) -> None:
        """A block that is given, or taken back where its size is negative, as ``profile_memory=True`` records it.

        Fields as PyTorch 2.11 wrote them on an H200; device type 1 is CUDA, 0 the host (c10/core/DeviceType.h).
        """
        args = {"Total Reserved": 2 * total, "Total Allocated": total, "Bytes": size, "Device Id": device,
                "Device Type": 0 if device < 0 else 1, "Addr": address, "finished": False}  # fmt: skip
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100,
                            "tid": thread, "ts": at, "args": args})  # fmt: skip

    def write(self, folder: Path, name: str = "made.json") -> Path:
        """The document as a file."""
        path = folder / name
        path.write_text(json.dumps(self.document), encoding="utf-8")
        return path


def strides(shape: Any) -> list[int]:
    """Of a tensor whose rows lie one after the other."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return found[::-1]


def chain(made: Made, calls: Any, iterations: int = 2, gap: float = 0.0) -> Made:
    """Iterations of the same calls ``(op, dims, microseconds, options)``, one right after the other."""
    at = 1000.0
    for _ in range(iterations):
        for op, dims, duration, options in calls:
            at = made.call(op, dims, at, duration, **options)
        at += gap
    return made
