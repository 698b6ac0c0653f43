"""How far a prediction may be off: one factor for each class of kernel, from the residuals of the fit.

``1.2`` says that nine in ten measurements lie between the expected time over 1.2 and 1.2 times it.
"""

from __future__ import annotations

from math import log

from roofline.cost.parameters import Group, Parameter, values
from roofline.hardware.chip import Chip

#: Formats whose matmuls run on older or fewer kernels and scatter more.
WIDE = frozenset({"fp32", "tf32", "int8", "fp64", "fp8_block", "fp4"})


def _factor(prior: float, meaning: str) -> Parameter:
    return Parameter(prior, 1.0, 10.0, "factor", meaning)


GROUP = Group(
    "spread",
    matmul=_factor(1.6, "matmuls in 8- and 16-bit formats"),
    matmul_wide=_factor(1.8, "matmuls in the other formats"),
    attention=_factor(1.7, "fused attention"),
    conv=_factor(2.0, "convolutions"),
    stream=_factor(1.5, "elementwise kernels and moves"),
    rowwise=_factor(1.6, "norms, softmax and reductions"),
    training=_factor(1.5, "kernels that only training runs"),
    moe=_factor(2.0, "mixture-of-experts blocks"),
    network=_factor(1.8, "collectives"),
    internode=_factor(2.0, "collectives across nodes, or with algorithms that were not measured"),
    transfer=_factor(1.8, "copies over the host link"),
    program=_factor(1.35, "what a whole program adds: clocks, caches and gaps between its kernels"),
)


#: Provenances, the weakest first.
CERTAINTY = ("prior", "transferred", "measured")
#: Figures of another chip carry over with this much more doubt, in the logarithm.
TRANSFERRED = 1.5


def spread(chip: Chip, name: str, dtype: str = "", regime: str = "cold") -> float:
    """Half-width of the range of a class of kernels on a chip, as a natural logarithm."""
    key = "matmul_wide" if name == "matmul" and dtype in WIDE else name
    known = values(chip, GROUP, regime)
    if key not in known:  # a CPU's own groups, whose range is the chip's
        return log(max(chip.efficiency.high, 1 / chip.efficiency.low))
    own = any(key in chip.efficiency.parameters.get(table, {}) for table in (GROUP.name, f"{GROUP.name}_{regime}"))
    return log(known[key]) * (TRANSFERRED if chip.efficiency.like and not own else 1.0)


def provenance(chip: Chip, name: str, regime: str) -> str:
    """Tell whether a class of kernels was ``measured`` here, ``transferred`` from a sibling, or is a ``prior``."""
    tables, stated = chip.efficiency.parameters, chip.efficiency.calibrated
    if chip.efficiency.like:
        return "measured" if tables.get(name) or tables.get(f"{name}_{regime}") else "transferred"
    if tables.get(name) or tables.get(f"{name}_{regime}"):
        return "transferred" if stated == "transferred" else "measured"  # a what-if copy keeps the chip's figures
    return "prior" if tables else stated  # a chip may state measured shares and no more
