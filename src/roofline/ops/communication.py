"""Between devices, and between host and device: one device stands for all, and all hold the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.sizes import ceil_div, prod, quotient
from roofline.ir.unify import cell, product, unify
from roofline.ops.arrays import same
from roofline.ops.axes import Site
from roofline.ops.gradients import Rule, Tape, unchanged
from roofline.ops.registry import Op, declare

#: Operators in which devices exchange data, with the elements that each device gets for those that it gives.
COLLECTIVES: dict[str, Callable[[Any, int], Any]] = {
    "all_reduce": lambda e, devices: e,
    "all_gather": lambda e, devices: e * devices,
    "reduce_scatter": lambda e, devices: ceil_div(e, devices),
    "alltoall": lambda e, devices: e,
    "broadcast": lambda e, devices: e,
}


def _back_by(collective: str) -> Rule:
    """Make a rule that sends the gradient the other way; collectives take arrays of one axis."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        x = node.inputs[0]
        flat = t.reshaped(dy, (prod(t.shape(dy)),), "grad_flat")
        back = t.op(collective, flat, name="grad", like=x, **dict(node.attrs))
        t.b.restate(back, (prod(t.shape(x)),))
        t.accumulate(x, t.reshaped(back, t.shape(x), "grad_shaped"))

    return rule


def _send_gradient(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.accumulate(x, t.op("send", dy, name="grad", like=x, **dict(node.attrs)))


#: What brings the gradient back.
_GRADIENTS: dict[str, Rule] = {
    "all_reduce": unchanged, "all_gather": _back_by("reduce_scatter"), "reduce_scatter": _back_by("all_gather"),
    "alltoall": _back_by("alltoall"),
}  # fmt: skip


def _exchanged(site: Site) -> None:
    """Keep a size, or multiply or divide it by the devices."""
    sent, received, devices = site.axes["e"], site.axes["g"], site.attrs["devices"]
    if sent.size == received.size:
        unify(sent, received, site.name)
        return
    small, large = (received, sent) if site.op == "reduce_scatter" else (sent, received)
    count = cell(devices)
    site.freeze((count,))
    if quotient(large.size, small.size) == devices:
        unify(large, product([count, small]), site.name)
    else:
        site.freeze((large, small))


def _sizes(received: Callable[[Any, int], Any]) -> Callable[..., dict[str, Any]]:
    return lambda e, devices, nodes=1: {"g": received(e, devices), "devices": devices, "nodes": nodes}


for _name, _received in COLLECTIVES.items():
    declare(Op(
        _name, "e -> g", "network",
        f"{_name} among ``devices``: each gives ``e`` elements and gets ``g``; sums on the way are free. The group "
        "spans ``nodes``; ``algorithm`` names how, or a way to choose (``nccl``, ``serving``, ``fastest``).",
        derive=_sizes(_received), reference=lambda call, x: np.resize(x, call.shape),
        gradient=_GRADIENTS.get(_name), rule=_exchanged,
    ))  # fmt: skip

declare(Op(
    "send", "... -> ...", "network",
    "Point to point: a tensor goes to the next device, on another of the two ``nodes`` where there are two.",
    derive=lambda nodes=1: {"devices": 2, "nodes": nodes}, reference=same, gradient=_send_gradient,
))  # fmt: skip
declare(Op(
    "parallel_input", "... -> ...", "view",
    "What each of ``devices`` is given whole before it computes its share: nothing moves. Its backward adds up the "
    "devices' gradients (Shoeybi et al. 2019, figure 3, the operator f).",
    alias=0, reference=same, gradient=_back_by("all_reduce"),
))  # fmt: skip
declare(Op(
    "memcpy_h2d", "e -> e", "transfer",
    "Copy from the host to the device; ``pinned`` says whether the host's memory is page-locked.", reference=same,
))  # fmt: skip
declare(Op("memcpy_d2h", "e -> e", "transfer", "Copy from the device to the host.", reference=same))
