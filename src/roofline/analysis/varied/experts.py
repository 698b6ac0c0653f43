"""Experts on several devices: tokens drawn for each device, of which the slowest sets the pace of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.engines.tasks import needs_of
from roofline.analysis.estimates import Estimate
from roofline.analysis.evaluation import runtime_of
from roofline.analysis.varied.distribution import Distribution, Numbers
from roofline.cost import kernel_time
from roofline.counting.counts import KernelCount
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph

#: Draws times layers with experts at most: each is timed.
MOST = 5_000_000


def expert_parts(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return for each layer with shared experts the kernels from the sending of tokens to their return."""
    needs = needs_of(graph)
    by_layer: dict[str, list[str]] = {}
    for label in needs:
        by_layer.setdefault(graph.kernels[label][0].layer, []).append(label)
    parts: dict[str, tuple[str, ...]] = {}
    for layer, labels in by_layer.items():
        sends = [label for label in labels if any(node.op == "alltoall" for node in graph.kernels[label])]
        if len(sends) > 1:
            parts[layer] = _between(sends[0], sends[-1], labels, needs)
    return parts


def _between(first: str, last: str, labels: list[str], needs: dict[str, set[str]]) -> tuple[str, ...]:
    after, before = {first}, {last}
    for label in labels:
        after |= {label} if needs[label] & after else set()
    for label in reversed(labels):
        before |= needs[label] if label in before else set()
    return tuple(label for label in labels if label in after & before)


def loads(number: Any, devices: int, experts: int, popular: Distribution | None, rng: Any) -> Numbers:
    """Draw by which factor the device with the most tokens has more than the mean.

    Every pick of an expert is drawn by itself, by how popular experts are; that a token picks different ones is left
    out, which makes the draw slightly wider.

    Args:
        number: Picks of all tokens, one entry per draw.
        devices: That share the experts.
        experts: Of all devices.
        popular: What the popularity of each expert is drawn from; all are equally popular where absent.
        rng: Where randomness comes from.

    Example:
        >>> from roofline.analysis.varied.distribution import exponential
        >>> drawn = loads(np.full(20_000, 10**9), 4, 4, exponential(), np.random.default_rng(0))
        >>> round(float(drawn.mean()), 1), round(1 + 1/2 + 1/3 + 1/4, 1)  # the mean of the largest of 4 shares, times 4
        (2.1, 2.1)
    """
    picks = np.asarray(number, dtype=np.int64)
    shares = np.full((len(picks), devices), 1 / devices)
    if popular is not None:
        weights = popular.draw(len(picks) * experts, int(rng.integers(2**31))).reshape(len(picks), devices, -1)
        weights = np.where(weights.sum(axis=(1, 2), keepdims=True) > 0, weights, 1.0)
        shares = weights.sum(axis=2) / weights.sum(axis=(1, 2))[:, None]
    drawn = rng.multinomial(picks, shares)
    return np.asarray(drawn.max(axis=1) / np.maximum(picks / devices, 1e-300))


def imbalance(
    estimate: Estimate, popular: Distribution | None, seed: int
) -> tuple[dict[str, NDArray[np.intp]], Numbers, Numbers]:
    """Draw the load of the busiest device in each layer with experts, and how much longer its kernels take.

    Args:
        estimate: Over points, of what one of several devices runs.
        popular: As for :func:`loads`.
        seed: Of the draw.

    Returns:
        The numbers of the kernels concerned by layer; the load of the busiest device over the mean, an axis of layers
        and one of points; and for each of the kernels their time over that at the mean load, a first axis of kernels.

    Raises:
        UsageError: The program shares no experts, or has no batch; more draws than :data:`MOST` allows.
    """
    graph, devices = estimate.graph, estimate.graph.info.devices.ep
    parts = expert_parts(graph) if devices > 1 else {}
    if not parts or "B" not in estimate.grid.sizes:
        raise UsageError(f"experts: {graph.name} shares no experts among devices; give --ep, or rl.what_if(ep=...)")
    number = {name: at for at, row in enumerate(estimate.rows) for name in row.kernel.names}
    rows = {layer: np.array(sorted({number[label] for label in labels})) for layer, labels in parts.items()}
    blocks = [row for row in estimate.rows if row.kernel.main.op == "expert_linear"]
    points = int(np.prod(estimate.shape))
    if points * len(parts) > MOST:
        raise UsageError(
            f"samples={points:,} of {len(parts)} layers with experts; allowed: at most {MOST // len(parts):,}"
        )
    picks = np.broadcast_to(np.rint(np.asarray(blocks[0].sizes["t"], dtype=np.float64) * devices), points)
    experts = int(np.max(np.asarray(blocks[0].sizes["e"]))) * devices
    rng = np.random.default_rng([seed, len(parts)])
    factors = np.stack([loads(picks, devices, experts, popular, rng) for _ in parts])
    longer = np.ones((len(estimate.rows), *factors.shape))
    for at in sorted({int(each) for numbers in rows.values() for each in numbers}):
        longer[at] = _longer(estimate, estimate.rows[at], factors)
    return rows, factors, longer


def _longer(estimate: Estimate, row: KernelCount, factors: Numbers) -> Numbers:
    """Return the time of a kernel with so many times the tokens over that with the tokens of the mean."""
    sizes = {name: np.broadcast_to(np.asarray(size, dtype=np.float64), factors.shape).ravel()
             for name, size in estimate.grid.sizes.items()}  # fmt: skip
    runtime = runtime_of(estimate.mode)

    def seconds(batch: Numbers) -> Numbers:
        count = row.kernel.at({**sizes, "B": batch})
        time = kernel_time(count, estimate.chip, estimate.tf32, "program", runtime).expected
        return np.broadcast_to(np.asarray(time, dtype=np.float64), batch.shape)

    return (seconds(sizes["B"] * factors.ravel()) / seconds(sizes["B"])).reshape(factors.shape)
