"""Between devices, and between host and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.ir.sizes import ceil_div
from roofline.ops.registry import Work, op

#: Operators in which devices exchange data, with the shape that each device gets from the one it gives.
COLLECTIVES: dict[str, Callable[[Any, int], Any]] = {
    "all_reduce": lambda e, devices: e,
    "all_gather": lambda e, devices: e * devices,
    "reduce_scatter": lambda e, devices: ceil_div(e, devices),
    "alltoall": lambda e, devices: e,
    "broadcast": lambda e, devices: e,
}


def _register_collective(name: str, given: Callable[[Any, int], Any]) -> None:
    def formula() -> Work:
        return Work()

    def derive(e: Any, devices: Any, nodes: Any = 1) -> dict[str, Any]:
        return {"g": given(e, devices), "devices": devices, "nodes": nodes}

    formula.__doc__ = (
        f"{name} among ``devices``: each gives ``e`` elements and gets ``g``; sums on the way are free. The group "
        "spans ``nodes``; ``algorithm`` names how, or a way to choose (``nccl``, ``fastest``)."
    )
    op(name, "e -> g", "network", derive=derive)(formula)


for _name, _given in COLLECTIVES.items():
    _register_collective(_name, _given)


def _two(nodes: Any = 1) -> dict[str, Any]:
    return {"devices": 2, "nodes": nodes}


@op("send", "... -> ...", "network", derive=_two)
def send() -> Work:
    """Point to point: a tensor goes to the next device, on another of the two ``nodes`` where there are two."""
    return Work()


@op("memcpy_h2d", "e -> e", "transfer")
def memcpy_h2d() -> Work:
    """Copy from the host to the device; ``pinned`` says whether the host's memory is page-locked."""
    return Work()


@op("memcpy_d2h", "e -> e", "transfer")
def memcpy_d2h() -> Work:
    """Copy from the device to the host."""
    return Work()
