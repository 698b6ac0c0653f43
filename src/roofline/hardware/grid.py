"""Grids of cores: what a chip of many cores with memory of their own is made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roofline.hardware.parts import ByteRate, Bytes, Frozen, Text

_Size = Annotated[int, Field(strict=True, ge=1, le=10**6)]
_Shape = tuple[_Size, _Size, _Size]


class Engine(Frozen):
    """The matrix engine of a core.

    Attributes:
        shape: Rows, columns and depth of the product that it makes in one cycle: ``[8, 16, 16]`` multiplies 8x16 by
            16x16. Of a systolic array, one row by the array: ``[1, 128, 128]``.
        dataflow: ``tile``: products of that shape follow each other; ``systolic``: a tile of weights stays in the array
            while rows stream through it.
        load: Cycles in which a systolic array takes in a tile of weights, while it multiplies by the one before; absent
            where nobody says, and then no wait for it is charged.
        count: Engines of a core.
        tile: Rows, columns and depth that software pads operands to, the engine's shape where absent.
        source: Where the figures come from.
        note: What a reader of the numbers should know.
    """

    shape: _Shape
    dataflow: Literal["tile", "systolic"] = "tile"
    load: _Size | None = None
    count: _Size = 1
    tile: _Shape | None = None
    source: Text = ""
    note: Text = ""


class CoreGrid(Frozen):
    """Rows and columns of cores that share a computation.

    Attributes:
        rows: Of cores that compute.
        columns: Of cores that compute.
        sram: Memory of one core [byte].
        sram_bandwidth: At which an engine reads operands from it, per core [byte/s].
        noc_bandwidth: At which a core receives from the network on chip, all its networks together [byte/s].
        multicast: Whether the network delivers what is sent once to many cores.
        engine: The matrix engine of a core.
        source: Where the figures come from.
        note: What a reader of the numbers should know.
    """

    rows: _Size
    columns: _Size
    sram: Bytes | None = None
    sram_bandwidth: ByteRate | None = None
    noc_bandwidth: ByteRate | None = None
    multicast: Annotated[bool, Field(strict=True)] = True
    engine: Engine
    source: Text = ""
    note: Text = ""

    @property
    def cores(self) -> int:
        """Cores that compute."""
        return self.rows * self.columns
