"""Kernels that only training runs: the backward of fused attention, norms over the batch, sums down columns, tables.

Each works beside or on top of a class of kernels of inference, whose parameters it takes: attention's matmuls and
tiles, the streams' bandwidth, the launch of a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roofline.cost import attention, rowwise, stream
from roofline.cost.machine import knee
from roofline.cost.parameters import Group, Parameter, values
from roofline.cost.work import Launch
from roofline.ir.sizes import prod

GROUP = Group(
    "training",
    back=Parameter(0.85, 0.2, 1.5, "ratio", "pace of the matmuls of attention's backward to those of its forward"),
    back_exp=Parameter(2.5, 0.5, 5.0, "ratio", "elementwise work of that backward per pair to an exponential's"),
    draw=Parameter(0.24, 0.02, 2.0, "cycles", "a core's work per random number of dropout"),
    welford=Parameter(0.8, 0.05, 5.0, "cycles", "a core's work per element of statistics over the batch"),
    channel=Parameter(0.45, 0.05, 5.0, "cycles", "a core's work per element that is normalised by channel"),
    walk=Parameter(1.9e-9, 1e-10, 1e-7, "s", "per row of a sum over rows, which a block of columns walks down"),
    walk_norm=Parameter(4.1e-9, 1e-10, 1e-7, "s", "the same for the gradients of a norm's scale and shift"),
    windows=Parameter(2.3, 0.2, 20.0, "cycles", "a core's work per point whose pooling windows it searches"),
    sort=Parameter(6e-5, 1e-6, 5e-4, "s", "sorting the indices of an embedding's gradient, some thirty launches"),
    rows=Parameter(4.2, 0.2, 50.0, "cycles", "a core's work per element added to a row of a table"),
    knee=Parameter(1.75, 1.0, 8.0, "exponent", "sharpness of the knee between traffic and work"),
)

#: Rows of an embedding's gradient from which PyTorch sorts them first (embedding_dense_backward_cuda).
SORTED_FROM = 3072
#: Attention's gradient of queries is summed up in fp32.
BYTES_OF_SUMS = 4
#: Launches besides the matmuls of attention's backward, each about half as long as attention's own.
BESIDE = 0.5

Seconds = Callable[[Launch, Mapping[str, float]], Any]


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a kernel of training [s]."""
    own = kernel_of(work)
    assert own is not None
    return own(work, p)


def kernel_of(work: Launch) -> Seconds | None:
    """The formula of a kernel that only training runs; ``None`` for all others."""
    kernel = work.row.kernel
    ops = {node.op for node in kernel.nodes}
    if kernel.kind == "attention" and len(kernel.nodes) > 1:
        return _attention_backward if "attention_softmax_grad" in ops else _dropping if "bernoulli" in ops else None
    if work.op == "reduce":
        return {"column": _walk, "channel": _sums}.get(_summed(work))
    if work.op == "pool_grad" and len(kernel.inputs) == 1:
        return None
    return KERNELS.get(work.op)


# --- attention -------------------------------------------------------------------------------------------------------


def _dropping(work: Launch, p: Mapping[str, float]) -> Any:
    """A forward that draws which probabilities it drops."""
    return attention.seconds(work, values(work.chip, attention.GROUP, work.regime)) + _drawn(work, p)


def _drawn(work: Launch, p: Mapping[str, float]) -> Any:
    drawn = any(node.op == "bernoulli" for node in work.row.kernel.nodes)
    s, attrs = work.sizes, work.row.kernel.attrs
    pairs = s["b"] * s["h"] * s["q"] * s["k"] / (2 if attrs.get("causal") else 1)
    return pairs * p["draw"] / (work.machine.units * work.machine.clock) if drawn else 0.0


def _attention_backward(work: Launch, p: Mapping[str, float]) -> Any:
    """Five matmuls for the forward's two, a kernel before them for ``sum(dO O)``, one after them for the gradients.

    The first reads output and gradient and clears fp32 sums for the queries' gradient, which cores add to as they walk
    the queries of a block of keys; the last rounds them. Heads on the same keys each write a gradient for these, which
    one more kernel adds up (cuDNN; FlashAttention-2, Dao 2023, section 3.1).
    """
    shared = values(work.chip, attention.GROUP, work.regime)
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    queries, keys = s["b"] * s["h"] * s["q"] * s["d"], s["b"] * s["h"] * s["k"] * s["d"]
    grouped = s["h"] > s["g"]
    others = queries * (3 * work.element + 2 * BYTES_OF_SUMS) + np.where(grouped, 4 * keys * work.element, 0.0)
    memory = (work.row.bytes + others) / (work.machine.bandwidth * shared["dram"])
    walk = attention.walk(work, {**shared, "exp": shared["exp"] / p["back_exp"]}, 2.5 / p["back"])
    return (3 + grouped) * BESIDE * shared["launch"] + walk + memory + _drawn(work, p)


# --- norms and sums --------------------------------------------------------------------------------------------------


def _batchnorm(work: Launch, p: Mapping[str, float]) -> Any:
    return _sweeps(work, p, ("welford", "channel"))


def _sums(work: Launch, p: Mapping[str, float]) -> Any:
    return _sweeps(work, p, ("channel",))


def _sweeps(work: Launch, p: Mapping[str, float], paces: Sequence[str]) -> Any:
    """All cores sweep the images element by element, once for each pace; the last sweep writes."""
    chip, read, shared = work.machine, work.row.read, values(work.chip, rowwise.GROUP, work.regime)
    sizes = (work.sizes[axis] for axis in ("n", "c", "batch") if axis in work.sizes)
    elements = np.asarray(prod(sizes), dtype=np.float64)
    missed = 1 / (1 + (shared["reread"] * chip.cache / np.maximum(read, 1.0)) ** 3) if chip.cache else 1.0
    time: Any = 0.0
    for at, pace in enumerate(paces):
        traffic = read * (missed if at else 1.0) + (work.row.write if at == len(paces) - 1 else 0.0)
        busy = elements * p[pace] / (chip.units * chip.clock)
        moved = traffic / (chip.bandwidth * shared["dram"])
        time = time + shared["launch"] + shared["setup"] + knee([moved, busy], p["knee"])
    return time


def _summed(work: Launch) -> str:
    """Tell what a reduction sums: along each ``row``, down the ``column``, or over all but the ``channel``."""
    rank, named = len(work.row.kernel.shapes[0]), work.row.kernel.attrs.get("axes")
    axes = {axis % rank for axis in ((named,) if isinstance(named, int) else named or range(rank))}
    if rank - 1 not in axes or work.row.kernel.attrs.get("outer"):
        return "column"
    return "channel" if 0 in axes and 1 not in axes and rank > 2 else "row"


def _walk(work: Launch, p: Mapping[str, float]) -> Any:
    """Sums down columns: a block takes some columns and walks down all rows."""
    shared, norm = values(work.chip, rowwise.GROUP, work.regime), len(work.row.kernel.nodes) > 1
    rows = np.asarray(work.sizes["c"], dtype=np.float64) * p["walk_norm" if norm else "walk"]
    moved = stream.transfer(work, shared, work.row.read)
    return shared["launch"] + shared["setup"] + knee([moved, rows], p["knee"])


# --- moves -----------------------------------------------------------------------------------------------------------


def _added(work: Launch, p: Mapping[str, float]) -> Any:
    """Gradients of rows are sorted by index, where there are many, and added to their rows of the table."""
    tokens = np.asarray(work.sizes["batch"], dtype=np.float64)
    added = tokens * work.sizes["d"] * p["rows"] / (work.machine.units * work.machine.clock)
    moved = stream.seconds(work, values(work.chip, stream.GROUP, work.regime))
    return moved + added + np.where(tokens > SORTED_FROM, p["sort"], 0.0)


def _windows(work: Launch, p: Mapping[str, float]) -> Any:
    """Each point of the image looks for itself in the windows that it was in."""
    busy = stream.outputs(work) * p["windows"] / (work.machine.units * work.machine.clock)
    return knee([stream.seconds(work, values(work.chip, stream.GROUP, work.regime)), busy], p["knee"])


#: Kernels by their main operator.
KERNELS: dict[str, Seconds] = {
    "batchnorm_train": _batchnorm, "channelnorm_grad": _sums, "embedding_grad": _added, "pool_grad": _windows,
}  # fmt: skip
