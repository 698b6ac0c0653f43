"""What a profiler recorded, in columns: one row an event, whatever wrote the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Kind(IntEnum):
    """What an event is."""

    OP = 0  # an operator of the framework on the host (cpu_op)
    ANNOTATION = 1  # a range that the user or the profiler named, on the host
    RUNTIME = 2  # a call of the runtime or the driver (launch, copy, synchronise)
    PYTHON = 3  # a Python frame
    KERNEL = 4  # on the device
    MEMCPY = 5  # on the device
    MEMSET = 6  # on the device
    OTHER = 7


#: Kinds that occupy a device.
DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


@dataclass(frozen=True, slots=True)
class Signature:
    """Recorded arguments of an operator, one entry an argument.

    Attributes:
        dims: Shape of a tensor; ``()`` of a scalar or of nothing; a tuple of shapes for a list of tensors.
        types: Such as ``float``, ``c10::BFloat16``, ``Scalar``, ``TensorList``; empty where none was given.
        strides: Of each tensor, in elements; empty where they were not recorded.
        concrete: Values of arguments that are no tensors, as text; empty where they were not recorded.
    """

    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    concrete: tuple[str, ...] = ()


@dataclass(frozen=True)
class Events:
    """All events of a file that have a duration, sorted by start; absent whole numbers are -1, absent bytes are nan.

    Attributes:
        kind: A :class:`Kind` each.
        name: Position in ``names``.
        start: Since the first event of the file [s].
        duration: [s].
        process: Of the host, or the number that the profiler gave the device.
        thread: Of the host, or the stream.
        external: Ties device events and runtime calls to the operator that caused them.
        correlation: Ties device events to the runtime call that launched them.
        device: Number of the device.
        stream: Of the device.
        bytes: Moved by a copy or set by a memset [B].
        count: Events that the row stands for, above 1 in files that hold sums (their ``duration`` is the sum).
        signature: Position in ``signatures``.
        detail: Position in ``details``.
        names: Texts.
        signatures: Recorded arguments of operators.
        details: What else was recorded and may help, such as ``grid``, ``block``, ``Collective name``, counters.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    external: NDArray[np.int64]
    correlation: NDArray[np.int64]
    device: NDArray[np.int32]
    stream: NDArray[np.int64]
    bytes: NDArray[np.float64]
    count: NDArray[np.int64]
    signature: NDArray[np.int32]
    detail: NDArray[np.int32]
    names: tuple[str, ...]
    signatures: tuple[Signature, ...]
    details: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Trace:
    """A profiler's file.

    Attributes:
        path: Where it was read from.
        format: ``torch``, ``nsys-trace``, ``nsys-sum``, ``ncu``, ``tt-perf`` or ``table``.
        events: What it holds.
        devices: Name of each device by its number, as the profiler spells it.
        timed: Whether starts are real, so that gaps mean something; sums and counters have none.
        notes: What was repaired, skipped or is missing, a sentence each.
        partial: Whether the file was cut, so that only a part of it was read.
        processes: Name of each process by its number, where the file gives one.
        threads: Name of each thread by process and thread, where the file gives one.
    """

    path: str
    format: str
    events: Events
    devices: Mapping[int, str] = field(default_factory=dict)
    timed: bool = True
    notes: tuple[str, ...] = ()
    partial: bool = False
    processes: Mapping[int, str] = field(default_factory=dict)
    threads: Mapping[tuple[int, int], str] = field(default_factory=dict)
