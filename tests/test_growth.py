"""Work grows in proportion to depth: no pass looks at all of a program again for each of its layers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location("growth", Path(__file__).parents[1] / "benchmarks/growth.py")
assert _SPEC is not None
assert _SPEC.loader is not None
growth = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(growth)

#: Those whose work is counted: the others are made of them, or take long.
COUNTED = [
    "estimate compiled", "fuse pointwise", "fuse chains", "fuse inductor", "fuse flash", "fuse ideal", "quantize",
    "shard tp=2 sp", "stages", "clean", "prune channels", "prune layers", "backward", "saved", "listing text",
]  # fmt: skip
FEW, MANY = 16, 64


def calls(name: str, layers: int) -> int:
    """Functions that are called, those in C too: a measure of work that is the same on every machine."""
    graph, count = growth.program(layers), 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        growth.FUNCTIONS[name](graph)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", COUNTED)
def test_work_grows_with_depth(name: str) -> None:
    """Four times the layers, none of which is like another, are four times the calls."""
    growth.FUNCTIONS[name](growth.program(8))
    few = calls(name, FEW)
    assert calls(name, MANY) < 4.3 * few
