"""When a run needs each tensor, and which of them stay on chip between two uses.

Steps are the kernels of a run in their order. What a kernel writes or reads is there while it runs; between two uses a
tensor stays on chip, or it goes out to main memory and comes back. Which one goes is decided for the whole run at
once: the longest waits go first, since they keep the most bytes from others for the traffic that they save (with one
size that is Belady's rule, the farthest next use: IBM Systems Journal 5, 1966, https://doi.org/10.1147/sj.52.0078).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import Estimate
from roofline.counting.counts import kernel_boundaries, moved, nbytes
from roofline.counting.memory import allocations
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Lifetimes
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_bytes
from roofline.planning.placement import Arena, Block, place

#: Bytes of all tensors of a plan at most, so that offsets are whole numbers of 64 bits.
MOST = 2**60


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor over a run.

    Attributes:
        name: Of the tensor, the one whose storage views and updates in place share.
        kind: ``weight``, ``buffer``, ``cache``, ``input`` or ``activation``.
        size: Of its storage [byte].
        first: The first step that needs it.
        last: The last one; of what outlives the run, the last of all.
        read: Bytes that each step reads of it [byte].
        write: Bytes that each step writes of it [byte].
        stays: Whether main memory must have it after the run, or has it before.
    """

    name: str
    kind: str
    size: int
    first: int
    last: int
    read: Mapping[int, float] = field(default_factory=dict)
    write: Mapping[int, float] = field(default_factory=dict)
    stays: bool = True

    @property
    def uses(self) -> list[int]:
        """Steps that read or write it."""
        return sorted(self.read.keys() | self.write.keys())

    @property
    def waits(self) -> list[tuple[int, int]]:
        """Each use with the next one."""
        uses = self.uses
        return list(pairwise(uses))


def planned(graph: Graph) -> Graph:
    """Return a program whose tensors are free after their last use, as a compiler plans them."""
    return graph.with_info(lifetimes=Lifetimes(planned=True))


def lives(estimate: Estimate, steps: Sequence[str]) -> list[Life]:
    """Return the life of each tensor that a run keeps in memory, those that are there before it first.

    Args:
        estimate: Of one point on one chip.
        steps: The labels of its kernels in the order in which they run.

    Raises:
        UsageError: More bytes than any memory has.
    """
    graph, number = planned(estimate.graph), {label: at for at, label in enumerate(steps)}
    sizes, root = estimate.grid.sizes, kernel_boundaries(graph).root
    read, write = _by_tensor(graph, number, sizes)
    outputs = {root(name) for name in graph.outputs}

    def life(name: str, stays: bool, written: Sequence[int] = ()) -> Life:
        tensor = graph.tensors[name]
        uses = sorted({*read.get(name, {}), *write.get(name, {}), *written}) or [0]
        ends = (0, len(steps) - 1) if tensor.kind != "activation" else (uses[0], len(steps) - 1 if stays else uses[-1])
        return Life(name, tensor.kind, int(evaluate(nbytes(tensor), sizes)), *ends, read.get(name, {}),
                    write.get(name, {}), stays)  # fmt: skip

    every = [life(name, True) for name, tensor in graph.tensors.items() if tensor.kind != "activation"]
    every += [life(tensor.name, tensor.name in outputs) for tensor, _, _ in allocations(graph)]
    if (total := sum(each.size for each in every)) > MOST:
        raise UsageError(
            f"{graph.name}: {format_bytes(total)} of tensors; allowed in a plan: up to {format_bytes(MOST)}"
        )
    return every


def _by_tensor(
    graph: Graph, number: Mapping[str, int], sizes: Mapping[str, object]
) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    """Return the bytes that each step reads, and writes, by tensor."""
    sides: tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]] = ({}, {})
    for label, both in moved(graph).items():
        if label in number:
            runs = max(node.count for node in graph.kernels[label])
            for side, amounts in zip(sides, both, strict=True):
                for name, amount in amounts.items():
                    side.setdefault(name, {})[number[label]] = runs * float(evaluate(amount, sizes))
    return sides


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor on chip from one use to a later one, with all uses between.

    Attributes:
        life: The tensor.
        first: The use before.
        last: The use behind.
        offset: Where it lies [byte].
    """

    life: Life
    first: int
    last: int
    offset: int = -1

    @property
    def block(self) -> Block:
        """Bytes and steps of it."""
        return Block(self.life.size, self.first, self.last)


def stays(every: Sequence[Life], steps: int, arena: Arena) -> list[Stay]:
    """Choose what stays on chip between uses, and place it.

    Returns:
        What stays, each with its offset; all of it where all of it finds room.
    """
    whole = [Stay(life, life.uses[0], life.uses[-1]) for life in every if life.waits]
    trial = Arena(arena.alignment, arena.capacity)
    if None not in place([stay.block for stay in whole], trial):
        return _placed(whole, arena)
    return _placed(_joined(_chosen(every, steps, arena)), arena)


def _placed(chosen: Sequence[Stay], arena: Arena) -> list[Stay]:
    offsets = place([stay.block for stay in chosen], arena)
    return [replace(stay, offset=at) for stay, at in zip(chosen, offsets, strict=True) if at is not None]


def _chosen(every: Sequence[Life], steps: int, arena: Arena) -> list[Stay]:
    """Return the waits on chip whose bytes find room, those first that save most traffic for a byte and a step."""
    used = np.zeros(steps, dtype=np.int64)
    waits = [Stay(life, *wait) for life in every for wait in life.waits]
    held: dict[str, set[int]] = {}
    chosen = []
    for stay in sorted(waits, key=lambda stay: -_worth(stay)):
        of = held.setdefault(stay.life.name, set())
        more = [at for at in range(stay.first, stay.last + 1) if at not in of]
        size = int(arena.aligned(stay.life.size))
        if size <= arena.capacity and (not more or used[more].max() + size <= arena.capacity):
            used[more] += size
            of.update(more)
            chosen.append(stay)
    return chosen


def _worth(stay: Stay) -> float:
    """Return the traffic that a wait on chip saves for a byte and a step: its read, and its part of the write."""
    life = stay.life
    written = 0.0 if life.stays else sum(life.write.values()) / len(life.waits)
    return (life.read.get(stay.last, 0.0) + written) / max(life.size * (stay.last - stay.first + 1), 1)


def _joined(waits: Sequence[Stay]) -> list[Stay]:
    """Put waits that follow each other together, so that a tensor does not change its place between them."""
    joined: list[Stay] = []
    for stay in sorted(waits, key=lambda stay: (stay.life.name, stay.first)):
        if joined and joined[-1].life is stay.life and joined[-1].last == stay.first:
            joined[-1] = replace(joined[-1], last=stay.last)
        else:
            joined.append(stay)
    return joined


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a run, by step [byte].

    Attributes:
        weights: Of parameters that main memory sends: known before the run, so that they can come ahead.
        other: All other traffic of main memory.
        chip: Traffic on chip, of what stays there.
        out: What goes out though a later kernel reads it: a part of ``other``.
        back: What comes back, likewise.
    """

    weights: NDArray[np.float64]
    other: NDArray[np.float64]
    chip: NDArray[np.float64]
    out: NDArray[np.float64]
    back: NDArray[np.float64]

    @property
    def main(self) -> NDArray[np.float64]:
        """All traffic of main memory."""
        return self.weights + self.other


def traffic(every: Sequence[Life], chosen: Sequence[Stay], steps: int) -> Traffic:
    """Return what a run moves where, given what stays on chip."""
    moves = Traffic(*(np.zeros(steps) for _ in range(5)))
    ranges: dict[str, list[Stay]] = {}
    for stay in chosen:
        ranges.setdefault(stay.life.name, []).append(stay)
    for life in every:
        _move(moves, life, ranges.get(life.name, []))
    return moves


def _move(moves: Traffic, life: Life, ranges: Sequence[Stay]) -> None:
    """Add what a tensor moves, given when it is on chip."""
    near = {at for stay in ranges for at in life.uses if stay.first < at <= stay.last}
    handed = life.kind == "activation" and len(life.waits) > 0
    whole = handed and not life.stays and len(near) == len(life.waits)
    loads = moves.weights if life.kind in ("weight", "buffer") else moves.other
    for at, amount in life.read.items():
        (moves.chip if at in near else loads)[at] += amount
        moves.back[at] += amount if handed and at not in near else 0.0
    for at, amount in life.write.items():
        moves.chip[at] += amount if any(stay.first <= at <= stay.last for stay in ranges) else 0.0
        moves.other[at] += 0.0 if whole else amount
        moves.out[at] += amount if handed and not whole and not life.stays else 0.0
