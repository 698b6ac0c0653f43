"""How far a prediction may be off: one factor for each class of kernel, from the residuals of the fit.

``1.2`` says that nine in ten measurements lie between the expected time over 1.2 and 1.2 times it. Kernels of a class
err together: a formula that is wrong for one of them is wrong for its neighbours in the program. Classes err on their
own. Operators that run alone have factors of their own, since they say nothing about what frameworks make of programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np

from roofline.cost.machine import machine
from roofline.cost.parameters import Group, Parameter, values
from roofline.cost.work import Launch
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip

#: Formats whose matmuls run on older or fewer kernels and scatter more.
WIDE = frozenset({"fp32", "tf32", "int8", "fp64", "fp8_block", "fp4"})


def _factor(prior: float, meaning: str) -> Parameter:
    return Parameter(prior, 1.0, 10.0, "factor", meaning)


#: Of operators that run alone.
GROUP = Group(
    "spread",
    matmul=_factor(1.6, "matmuls in 8- and 16-bit formats"),
    matmul_wide=_factor(1.8, "matmuls in the other formats"),
    attention=_factor(1.7, "fused attention"),
    conv=_factor(2.0, "convolutions"),
    stream=_factor(1.5, "elementwise kernels and moves"),
    rowwise=_factor(1.6, "norms, softmax and reductions"),
    channels=_factor(1.6, "norms over the channels of images"),
    training=_factor(1.5, "kernels that only training runs"),
    moe=_factor(2.0, "mixture-of-experts blocks"),
    network=_factor(1.8, "collectives"),
    internode=_factor(2.0, "collectives across nodes, or with algorithms that were not measured"),
    transfer=_factor(1.8, "copies over the host link"),
)
#: Of all kernels of a class in a program; classes that it lacks have the figure of an operator alone.
PROGRAM = Group(
    "program",
    matmul=_factor(1.6, "matmuls in 8- and 16-bit formats"),
    matmul_wide=_factor(1.6, "matmuls in the other formats"),
    matmul_memory=_factor(1.35, "traffic of matmuls, where it takes their time"),
    attention=_factor(1.5, "fused attention"),
    conv=_factor(1.7, "two-dimensional convolutions over all channels"),
    conv_other=_factor(2.2, "convolutions of one or three axes, transposed, grouped, and their gradients"),
    stream=_factor(1.4, "elementwise kernels and moves of whole tensors"),
    strided=_factor(1.7, "elementwise kernels and moves of parts, repeated or permuted operands"),
    rowwise=_factor(1.5, "norms, softmax and reductions"),
    channels=_factor(1.5, "norms over the channels of images"),
    training=_factor(1.6, "kernels that only training runs"),
    unmeasured=_factor(2.5, "operators of which no row was measured: indexed moves, recurrent cells, scans, sorting"),
    whole_program=_factor(1.3, "what a whole program adds: clocks, caches and gaps between its kernels"),
)

#: Operators of the class ``unmeasured``.
UNMEASURED = frozenset({
    "take", "put", "scatter_add", "gather_rows", "cache_update", "state_update", "unknown", "resample", "upsample2d",
    "pool_grad", "scan", "topk", "bernoulli", "recurrent_cell", "recurrent_cell_grad", "causal_conv", "selective_scan",
    "linear_recurrence", "ssd_scan", "delta_scan", "mixer_grad", "triangular_solve", "quantize_rows",
})  # fmt: skip

#: Provenances, the weakest first.
CERTAINTY = ("prior", "transferred", "measured")
#: Figures of another chip carry over with this much more doubt, in the logarithm; those of a twin, whose cores are the
#: same and whose memory is not, with so much: nine of ten of the H200's operators lie within the H100's ranges then.
TRANSFERRED, TWIN = 1.5, 1.15


def kernel_classes(work: Launch, name: str, reading: Any) -> dict[str, Any]:
    """Return the classes of a launch, whose members err together in a program, with their shares of its time.

    What a matmul takes to read its operands is known as well where its arithmetic takes longer: so that a range does
    not widen at once where a size makes it so, and its low end never falls as a size grows.

    Args:
        work: The launch.
        name: Of the parameters of its formula.
        reading: The share of its time that main memory's traffic takes, at each point.

    Returns:
        Classes and their shares.
    """
    kind = _kernel_class(work, name)
    if name != "matmul" or work.regime != "program":
        return {kind: 1.0}
    reading = np.minimum(reading, 1.0)
    return {kind: 1.0 - reading, "matmul_memory": reading}


def _kernel_class(work: Launch, name: str) -> str:
    if name == "matmul":
        return "matmul_wide" if work.dtype in WIDE else "matmul"
    if work.regime != "program" or name not in PROGRAM:
        return name
    if work.op in UNMEASURED:
        return "unmeasured"
    if name == "conv":
        return "conv" if work.op == "conv2d" and work.row.kernel.attrs.get("groups", 1) == 1 else "conv_other"
    return "strided" if name == "stream" and (work.row.kernel.strided or work.op == "rearrange") else name


def spread(chip: Chip, name: str, regime: str = "cold") -> float:
    """Half-width of the range of a class of kernels on a chip, as a natural logarithm."""
    group = PROGRAM if regime == "program" and name in PROGRAM else GROUP
    known = values(chip, group, regime)
    if name not in known:  # a CPU's own groups, whose range is the chip's
        return log(max(chip.efficiency.high, 1 / chip.efficiency.low))
    own = any(name in chip.efficiency.parameters.get(table, {}) for table in (group.name, f"{group.name}_{regime}"))
    return log(known[name]) * (_doubt(chip) if chip.efficiency.like and not own else 1.0)


def _doubt(chip: Chip) -> float:
    """Return how much wider ranges of a sibling's figures are on a chip, in the logarithm."""
    ours, theirs = (
        (machine(each).cores, machine(each).cache, getattr(each.matrix.get("bf16"), "flops", 0.0))
        for each in (chip, find_chip(chip.efficiency.like))
    )
    return TWIN if ours == theirs else TRANSFERRED


def half_width(parts: Mapping[str, Any]) -> Any:
    """Return the half-width of a range whose parts err on their own, in the unit of the parts."""
    return np.sqrt(sum(np.square(part) for part in parts.values()))


def provenance(chip: Chip, name: str, regime: str) -> str:
    """Tell whether a class of kernels was ``measured`` here, ``transferred`` from a sibling, or is a ``prior``."""
    tables, stated = chip.efficiency.parameters, chip.efficiency.calibrated
    if chip.efficiency.like:
        return "measured" if tables.get(name) or tables.get(f"{name}_{regime}") else "transferred"
    if tables.get(name) or tables.get(f"{name}_{regime}"):
        return "transferred" if stated == "transferred" else "measured"  # a what-if copy keeps the chip's figures
    return "prior" if tables else stated  # a chip may state measured shares and no more
