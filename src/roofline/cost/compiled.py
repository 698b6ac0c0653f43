"""What a fused kernel asks of a core: registers of its threads, shared memory of its rows, and what overflows.

A thread that loads 16 bytes at a time keeps a register for each element of each value that is still needed. What
exceeds its registers is spilled to local memory, which lies in main memory behind the caches. A kernel along rows
keeps a row where its threads can exchange it; a row that does not fit is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.hardware.chip import Chip

#: 32-bit registers that a thread can have, and a core of an NVIDIA GPU has (CUDA C++ Programming Guide, table
#: "Technical Specifications per Compute Capability":255 per thread and 64 K per multiprocessor from 5.0 to 12.0).
THREAD_REGISTERS, CORE_REGISTERS = 255, 65536
#: Registers of a thread beside its values: index, addresses, temporaries. CUDA 13.0 takes 12 to 20 for elementwise
#: bodies of 4 to 256 live values, compiled for sm_90.
OWN_REGISTERS = 14
#: Bytes of a register.
REGISTER = 4
#: Bytes of the widest load of a thread.
LOAD = 16
#: Registers of a thread that hold the sums of a matmul's tile: 128 x 256 in fp32 over 256 threads (CUTLASS,
#: media/docs/efficient_gemm.md: accumulators stay in registers until the epilogue).
ACCUMULATORS = 128
WARP = 32
KIB = 1024

#: Shared memory of a core by its L1 and shared memory together and the year from which that holds [KiB]: the CUDA
#: C++ Programming Guide's table has 228 for 9.0 and 10.0, 164 for 8.0 and 8.7, 100 for 8.6, 8.9 and 12.0, 96 for 7.0.
_SHARED = ((256, 2022, 228), (192, 2020, 164), (128, 2020, 100), (128, 2017, 96))


@dataclass(frozen=True, slots=True)
class Registers:
    """What a thread of a fused kernel holds at its fullest; numbers or arrays.

    Attributes:
        live: Values that are needed at once.
        width: Elements of each that a thread works on.
        needed: Registers that they take, with the thread's own.
        spilled: Of these, what exceeds the limit.
        threads: Threads of a launch.
    """

    live: int
    width: int
    needed: int
    spilled: int
    threads: Any

    @property
    def spill_bytes(self) -> Any:
        """Local memory written and read back by one launch, each spilled register once [byte].

        About the least that a compiler moves: CUDA 13.0 moves 0.9 to 2.4 times as much for bodies of 65 to 97 live
        values of 4 elements. Part of it stays in the caches: at main memory's rate these bytes bring such kernels to
        1.10, 1.07, 0.92 and 0.71 of the time that an H100 takes for them (docs/fusion.md).
        """
        return 2 * REGISTER * self.spilled * self.threads

    @property
    def resident(self) -> int:
        """Threads of a core that its registers leave room for, in whole warps."""
        return CORE_REGISTERS // (min(self.needed, THREAD_REGISTERS) * WARP) * WARP


def registers(live: int, element: float, elements: Any, *, held: int = 0, words: int = 1, width: int = 0) -> Registers:
    """Registers of a thread that works on as many elements as its widest load brings.

    Args:
        live: Values that are needed at once.
        element: Bytes of the widest element that is moved [byte].
        elements: Elements that the kernel sweeps.
        held: Registers taken as well, such as a matmul's accumulators.
        words: Registers of a value: 2 for fp64.
        width: Elements a thread, instead of those of the widest load.

    Example:
        >>> few, many = registers(8, 4, 2**20), registers(80, 4, 2**20)
        >>> few.needed, few.spilled, many.needed, many.spilled, many.spill_bytes
        (46, 0, 334, 79, 165675008.0)
    """
    width = width or max(1, int(LOAD // element))
    needed = OWN_REGISTERS + held + live * width * words
    return Registers(live, width, needed, max(0, needed - THREAD_REGISTERS), elements / width)


def widest(live: int, element: float, held: int = 0, words: int = 1) -> int:
    """The most elements per thread, from its widest load downwards, whose values need no spilling; 0 if not even one.

    Example:
        >>> widest(8, 4), widest(80, 4), widest(300, 4)
        (4, 2, 0)
    """
    width = max(1, int(LOAD // element))
    while width and OWN_REGISTERS + held + live * width * words > THREAD_REGISTERS:
        width //= 2
    return width


def has_registers(chip: Chip) -> bool:
    """Tell whether the register limits are those of this chip: NVIDIA GPUs; others publish other ones, or none."""
    return chip.vendor.upper() == "NVIDIA"


def shared_memory(chip: Chip) -> float | None:
    """Return what a core can keep for its threads to exchange: its shared memory, or local memory [byte].

    Returns:
        ``None`` where the chip's file has no memory that a core owns.

    Example:
        >>> import roofline as rl
        >>> [shared_memory(rl.chip(name)) / 1024 for name in ("h100-sxm", "a100-80gb-sxm", "mi300x")]
        [228.0, 164.0, 64.0]
    """
    level = next((level for level in chip.memory[1:] if level.shared_by == "core" and level.capacity), None)
    if level is None or level.capacity is None or not chip.cores:
        return None
    own = level.capacity / chip.cores
    if has_registers(chip):
        for both, year, shared in _SHARED:
            if abs(own / KIB - both) < 1 and (chip.year or year) >= year:
                return float(shared * KIB)
    return own


@dataclass(frozen=True, slots=True)
class Rows:
    """What a fused kernel along rows keeps on a core; numbers or arrays.

    Attributes:
        row_bytes: Of one row, of all values that are needed after a reduction over it [byte].
        room: Shared memory of a core [byte].
        again: Bytes of a launch that are read again where a row does not fit [byte].
    """

    row_bytes: Any
    room: float
    again: Any

    @property
    def held(self) -> Any:
        """Rows that a core holds at once; 0 where none fits."""
        return np.floor(self.room / np.asarray(self.row_bytes, dtype=np.float64))


def rows(columns: Any, values: int, reread: Any, room: float, element: int = REGISTER) -> Rows:
    """A row of a fused kernel against the shared memory of a core.

    Args:
        columns: Elements of a row.
        values: Values of a row that are needed after a reduction over it.
        reread: Bytes that a second pass over all rows reads [byte].
        room: Shared memory of a core [byte].
        element: Bytes of a value as it is computed with: 4, or 8 for fp64 [byte].

    Example:
        >>> fits, long = rows(8192, 2, 1e9, 228 * 1024), rows(131072, 1, 1e9, 228 * 1024)
        >>> float(fits.held), float(fits.again), float(long.held), float(long.again)
        (3.0, 0.0, 0.0, 1000000000.0)
    """
    size = np.asarray(columns, dtype=np.float64) * values * element
    return Rows(size, room, np.where(size > room, reread, 0.0))
