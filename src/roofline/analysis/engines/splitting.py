"""Collectives of tensor parallelism beside the matmuls around them: both in parts, so that one waits for less.

A matmul before an all-reduce or a reduce-scatter sends each part of its rows when it is done; a matmul after an
all-gather starts with the part that is there. Two ways:

``tp``: matmul and collective in as many parts as one likes, as Megatron-LM's ``--tp-comm-overlap`` and PyTorch's
asynchronous tensor parallelism do
(https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487).

``ring``: as many parts as devices; the all-gather or reduce-scatter becomes sends to the next device, one fewer than
parts, since the device's own part never travels (Wang et al. 2023, "Overlap Communication with Dependent Computation
via Decomposition in Large Deep Learning Models", https://doi.org/10.1145/3567955.3567959). An all-reduce is split as
by ``tp``.

What the parts of a matmul lose against the whole is what the time model says of matmuls of so many rows. A pair stays
whole where its parts would not end sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from roofline.analysis.engines.scheduler import schedule
from roofline.analysis.engines.tasks import STREAM, Task, spliced
from roofline.analysis.estimates import Estimate
from roofline.cost import kernel_time
from roofline.cost.network import message
from roofline.cost.work import launch
from roofline.counting.counts import KernelCount, kernels, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.errors import UsageError
from roofline.ir.sizes import evaluate, symbol
from roofline.ops.builder import Builder

#: How collectives may run beside matmuls.
OVERLAPS = ("tp", "ring")
#: Parts where nobody says how many.
CHUNKS = 4
_SENDS_RESULT, _BRINGS_INPUT = ("all_reduce", "reduce_scatter"), ("all_gather",)


@dataclass(frozen=True, slots=True)
class Split:
    """A collective and the matmuls beside it.

    Attributes:
        collective: Its position.
        matmuls: Their positions: one that it waits for, or all that wait for it.
        before: Whether the matmul comes first.
    """

    collective: int
    matmuls: tuple[int, ...]
    before: bool


@dataclass(frozen=True, slots=True)
class Overlapped:
    """How many collectives run beside matmuls.

    Attributes:
        split: Collectives that run in parts.
        whole: Those that would gain nothing.
    """

    split: int
    whole: int


def overlapped(
    tasks: Sequence[Task], estimate: Estimate, method: str, chunks: int | None
) -> tuple[list[Task], Overlapped]:
    """Return tasks with collectives and the matmuls beside them in parts, where that gains time.

    Args:
        tasks: The program's.
        estimate: Of the program.
        method: One of :data:`OVERLAPS`.
        chunks: Parts; :data:`CHUNKS`, or the devices of a ring, where absent.

    Raises:
        UsageError: The program has no collective beside a matmul.
    """
    pairs = _pairs(tasks)
    if not pairs:
        raise UsageError(
            f"overlap={method!r}: {estimate.graph.name} has no collective beside a matmul; shard it first: "
            "--tp on the command line, tp= of rl.what_if"
        )
    groups, links, taken = [[task] for task in tasks], dict[str, tuple[str, ...]](), set[int]()
    also: dict[int, int] = {}
    for pair in pairs:
        parts = _Parts(tasks, pair, estimate, method, chunks)
        if taken.isdisjoint(pair.matmuls) and parts.gains:
            taken.update(pair.matmuls, (pair.collective,))
            for at, group in parts.groups.items():
                groups[at] = group
            links.update(parts.links)
            also.update({pair.collective: pair.matmuls[0]} if pair.before else {})
    groups = [[replace(task, needs=(*task.needs, *(also[need] for need in task.needs if need in also)))
               for task in group] for group in groups]  # fmt: skip
    split = sum(pair.collective in taken for pair in pairs)
    return spliced(groups, links), Overlapped(split, len(pairs) - split)


def _pairs(tasks: Sequence[Task]) -> list[Split]:
    readers: dict[int, list[int]] = {}
    for at, task in enumerate(tasks):
        for need in task.needs:
            readers.setdefault(need, []).append(at)
    pairs = list[Split]()
    for at, task in enumerate(tasks):
        if task.op in _SENDS_RESULT and len(task.needs) == 1 and _is_matmul(tasks[task.needs[0]]):
            pairs.append(Split(at, task.needs, True))
        elif task.op in _BRINGS_INPUT:
            matmuls = tuple(reader for reader in readers.get(at, ()) if _is_matmul(tasks[reader]))
            pairs += [Split(at, matmuls, False)] if matmuls else []
    return pairs


def _is_matmul(task: Task) -> bool:
    return task.engine == STREAM and task.row is not None and task.row.kernel.kind == "matmul"


class _Parts:
    """The tasks that stand in for a collective and its matmuls.

    Attributes:
        groups: For the position of each, its parts.
        links: What single parts wait for.
    """

    def __init__(self, tasks: Sequence[Task], pair: Split, estimate: Estimate, method: str, chunks: int | None) -> None:
        self.tasks, self.pair, self.estimate = tasks, pair, estimate
        collective = tasks[pair.collective]
        assert collective.row is not None
        devices = int(collective.row.sizes["devices"])
        self.ring = method == "ring" and collective.op != "all_reduce"
        self.number = chunks or (devices if method == "ring" else CHUNKS)
        self.links: dict[str, tuple[str, ...]] = {}
        self.groups = {at: self._matmul(tasks[at]) for at in pair.matmuls}
        self.groups[pair.collective] = self._sent(collective, devices)
        self._link()

    def _matmul(self, task: Task) -> list[Task]:
        assert task.row is not None
        share = _share_of_time(task.row, _rows_of(task.row, self.number), self.estimate)
        needs = tuple(need for need in task.needs if need != self.pair.collective)
        return self._named(replace(task, seconds=task.seconds * share, needs=needs), self.number)

    def _sent(self, task: Task, devices: int) -> list[Task]:
        """Return the parts of the collective; of a ring, its sends."""
        assert task.row is not None
        needs = () if self.pair.before else task.needs
        if not self.ring:
            share = _share_of_time(task.row, _less(task.row, self.number, ("e", "g")), self.estimate)
            return self._named(replace(task, seconds=task.seconds * share, needs=needs), self.number)
        size = float(message(launch(task.row, self.estimate.chip, None, "program"))) / devices
        seconds = _send_seconds(self.estimate.chip, size, int(task.row.sizes.get("nodes", 1)))
        parts = self._named(replace(task, op="send", seconds=seconds, needs=needs), self.number - 1)
        return parts

    @staticmethod
    def _named(task: Task, number: int) -> list[Task]:
        return [replace(task, name=f"{task.name} {at + 1}/{number}") for at in range(number)]

    def _link(self) -> None:
        """Let each part wait for its own; in a ring the last of a matmul, or the first after it, for none."""
        sent = self.groups[self.pair.collective]
        for at in self.pair.matmuls:
            if self.pair.before:
                self.links |= {each.name: (part.name,) for part, each in zip(self.groups[at], sent, strict=False)}
            else:
                parts = self.groups[at][1 if self.ring else 0 :]
                self.links |= {part.name: (each.name,) for part, each in zip(parts, sent, strict=True)}

    @property
    def gains(self) -> bool:
        """Tell whether the parts, by themselves, end before the whole does."""
        pair = sorted((*self.pair.matmuls, self.pair.collective))
        parts = [[replace(task, needs=()) for task in self.groups[at]] for at in pair]
        alone = schedule(spliced(parts, self.links), {})
        return max(place.end for place in alone) < sum(self.tasks[at].seconds for at in pair)


def _rows_of(row: KernelCount, parts: int) -> KernelCount:
    """Return the counts of a matmul of a part of the rows: it reads all of its weights."""
    weights = float(sum(evaluate(nbytes(t), row.symbols) for t in row.kernel.operands if t.kind == "weight"))
    weights = min(weights, float(row.read))
    axis = "m" if "m" in row.sizes else "batch"
    return replace(
        _less(row, parts, (axis,)), read=weights + (float(row.read) - weights) / parts,
    )  # fmt: skip


def _less(row: KernelCount, parts: int, axes: Sequence[str]) -> KernelCount:
    def part(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value / parts for name, value in values.items()}

    sizes = {name: value / parts if name in axes else value for name, value in row.sizes.items()}
    return replace(
        row, flops_by=part(row.flops_by), vector_by=part(row.vector_by), read=row.read / parts, write=row.write / parts,
        read_flow=row.read_flow / parts, sizes=sizes,
    )  # fmt: skip


def _share_of_time(row: KernelCount, part: KernelCount, estimate: Estimate) -> float:
    """Return the time of a part against that of the whole, as one kernel each."""
    whole, less = (float(kernel_time(each, estimate.chip, estimate.tf32, "program").expected) for each in (row, part))
    return less / whole


@lru_cache(maxsize=256)
def _send_seconds(chip: Chip, size: float, nodes: int) -> float:
    """Return the time of a message to the next device of a ring [s]."""
    b = Builder("send", "int8")
    graph = b.graph([b.op("send", b.input("x", (symbol("N"),)), nodes=min(nodes, 2))])
    (kernel,) = kernels(graph)
    return float(kernel_time(kernel.at({"N": size}), chip).expected)
