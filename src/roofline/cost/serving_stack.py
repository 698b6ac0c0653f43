"""Time that a serving stack adds to matmuls: activations quantised on the way in, and a host that prepares kernels.

Only launches of the regime ``warm`` have it: those of the measured serving stacks, where the same layer runs again and
again. Their parameters are part of the group ``matmul``. In a whole program the kernel before has written fp8
activations, which is counted there, and launches are replayed without a host: :func:`_alone` tells. Activations in fp4
are quantised by a kernel of their own there, too: their scales lie in an order that no other kernel writes (vLLM,
csrc/quantization/fp4: ``scaled_fp4_quant``). Those of experts are quantised as they are brought to their experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.cost.parameters import Parameter
from roofline.cost.work import Launch

#: Elements that a core quantises to fp8 in a second: 2.9e9 to 3.3e9 on the H100, B200, B300, GB200 and GB300.
QUANTISED = 3.1e9
#: Elements of N and K that share a scale in block-scaled fp8; kernels pad to whole blocks.
SCALED = 128
#: Rows of block-scaled fp8 that a kernel takes together: scales are 4 bytes, wide loads 16.
RAGGED = 4

PARAMETERS: dict[str, Parameter] = {
    "entry_fp8": Parameter(3e-6, 0.1e-6, 1e-4, "s", "quantising the activations to fp8 first, in a serving stack"),
    "host_block": Parameter(
        8e-5, 1e-6, 1e-3, "s", "host time of a block-scaled fp8 matmul in a serving stack, hiding the device"
    ),
    "host_block_odd": Parameter(1.7e-4, 1e-6, 1e-3, "s", "the same where N or K is not a multiple of 128"),
    "host_block_few": Parameter(6e-5, 1e-6, 1e-3, "s", "the same for fewer than 16 rows"),
    "host_block_ragged": Parameter(1.1, 0.9, 2.0, "ratio", "host time of the same where rows are not a multiple of 4"),
    "entry_fp4": Parameter(5e-6, 0.1e-6, 1e-4, "s", "the same for fp4"),
    "entry_row": Parameter(5e-9, 1e-10, 1e-7, "s", "per row of activations in that quantisation"),
}


def host_seconds(work: Launch, p: Mapping[str, float], kind: str, m: Any, n: Any, k: Any) -> Any:
    """Time in which the host picks and prepares one of three kernels of block-scaled fp8, which hides the device [s].

    Scales of a ragged number of rows, more than one per row, are copied to aligned rows first.
    """
    if kind != "fp8_block" or not _alone(work):
        return 0.0
    whole = np.where(m < 16, p["host_block_few"], p["host_block"])
    ragged = (m % RAGGED != 0) & (k > SCALED)
    whole = np.where(ragged, whole * p["host_block_ragged"], whole)
    return np.where((n % SCALED == 0) & (k % SCALED == 0), whole, p["host_block_odd"])


def entry_seconds(work: Launch, p: Mapping[str, float], kind: str, rows: Any, depth: Any) -> Any:
    """Time in which a kernel of its own quantises activations that come in 16 bits [s].

    To fp8 one block of threads per row, one element per thread at a time: rows or elements per core, or the
    traffic, set the pace; to fp4 the traffic alone.
    """
    ready = not _alone(work) and (kind == "fp8" or work.op == "expert_linear")
    if f"entry_{kind}" not in p or work.regime != "warm" or ready:
        return 0.0
    chip = work.machine
    traffic = rows * depth * (2 + work.element) / (chip.bandwidth * p["dram"])
    if kind == "fp8":
        traffic = np.maximum(traffic, rows * np.maximum(p["entry_row"], depth / (chip.units * QUANTISED)))
    return p[f"entry_{kind}"] + traffic


def _alone(work: Launch) -> bool:
    """Tell whether a layer is launched by itself: its activations are what it is given, no other kernel's result."""
    return work.regime == "warm" and work.row.kernel.inputs[0].kind != "activation"
