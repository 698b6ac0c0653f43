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
        load: Cycles in which a systolic array takes in a tile of weights; absent where nobody says: then no wait for it
            is charged, or without overlap its depth.
        overlap: Whether it takes in a tile, fills and drains while it multiplies by the one before.
        count: Engines of a core.
        tile: Rows, columns and depth that software pads operands to, the engine's shape where absent.
        source: Where the figures come from.
        note: What a reader of the numbers should know.
    """

    shape: _Shape
    dataflow: Literal["tile", "systolic"] = "tile"
    load: _Size | None = None
    overlap: Annotated[bool, Field(strict=True)] = True
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
        lanes: Elements that the vector engine of a core works on at once: columns are padded to them.
        channels: Of main memory.
        channel_bandwidth: Of one of them; main memory's share where absent [byte/s].
        channel_serves: Which cores reach a channel: all of them, or those of its rows or of its columns, which the
            channels share evenly.
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
    lanes: _Size | None = None
    channels: _Size | None = None
    channel_bandwidth: ByteRate | None = None
    channel_serves: Literal["all", "rows", "columns"] = "all"
    engine: Engine
    source: Text = ""
    note: Text = ""

    @property
    def cores(self) -> int:
        """Cores that compute."""
        return self.rows * self.columns
