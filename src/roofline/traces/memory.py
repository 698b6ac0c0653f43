"""What allocators gave and took back while a profiler recorded (``profile_memory=True`` of torch.profiler)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: More than any run that somebody looks at; the rest of a larger file is left out.
MAX_ALLOCATIONS = 2_000_000
#: The number that stands for the host's own memory.
HOST = -1
#: Columns with their codes of :mod:`array`; starts are in whole microseconds and the rest, as those of events.
_COLUMNS = {
    "whole": "q", "rest": "d", "bytes": "q", "allocated": "q", "reserved": "q", "address": "q", "device": "i",
    "process": "q", "thread": "q",
}  # fmt: skip
#: No memory and no address is larger.
_LARGEST = 2**62


@dataclass(frozen=True)
class Allocations:
    """Blocks that were given or taken back, one row each, in order of time.

    PyTorch writes each as an instant event ``[memory]``, the totals after it:
    https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/collection.cpp

    Attributes:
        time: Since the first event of the file [s].
        bytes: Given, negative where taken back [B].
        allocated: In all on the device, afterwards; -1 where not recorded [B].
        reserved: Taken by the allocator from the device, likewise [B].
        address: Of the block.
        device: Number of the device, -1 for the host.
        process: Of the host.
        thread: Of the host.
    """

    time: NDArray[np.float64]
    bytes: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    address: NDArray[np.int64]
    device: NDArray[np.int32]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time)


class AllocationRecorder:
    """Collects them row by row in compact columns."""

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in _COLUMNS.items()}
        self._append: list[Any] = [column.append for column in self._columns.values()]

    def __len__(self) -> int:
        return len(self._columns["whole"])

    def add(self, start: Any, *row: int) -> None:
        """Append one; ``row`` is what follows the start in the order of the columns, absent whole numbers are -1."""
        whole = int(start)
        if not all(-_LARGEST < value < _LARGEST for value in row):
            return
        for append, value in zip(self._append, (whole, float(start - whole), *row), strict=True):
            append(value)

    def allocations(self, zero: tuple[int, float], scale: int = 1) -> Allocations | None:
        """Return all of them; ``None`` where there are none.

        Args:
            zero: When the first event of the file began, in whole microseconds and the rest.
            scale: What their clock counts in a microsecond.
        """
        if not len(self):
            return None
        columns = {name: np.array(self._columns[name]) for name in _COLUMNS}
        whole, rest = columns.pop("whole"), columns.pop("rest")
        time = ((whole // scale - zero[0]) + ((whole % scale + rest) / scale - zero[1])) * 1e-6
        order = np.argsort(time, kind="stable")
        return Allocations(time[order], **{name: column[order] for name, column in columns.items()})
