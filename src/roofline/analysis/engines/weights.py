"""Weights that stay on the host: each layer's come over while the layers before it compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from roofline.analysis.engines.tasks import COPY_IN, Task, spliced
from roofline.analysis.estimates import Estimate
from roofline.cost import BOUNDS, COMMUNICATION, kernel_time
from roofline.counting.counts import kernels, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.errors import UsageError
from roofline.ir.sizes import evaluate, symbol
from roofline.ops.aliases import aliases
from roofline.ops.builder import Builder

#: Tensors that are stored for a program.
_STORED = ("weight", "buffer")


@dataclass(frozen=True, slots=True)
class Streamed:
    """Weights that come from the host while a program runs.

    Attributes:
        depth: Layers whose weights are on their way, or there, before their turn.
        bytes: What crosses the host link in one run [byte].
        buffers: Room for it on the device: the most of ``depth + 1`` layers in a row [byte].
    """

    depth: int
    bytes: float
    buffers: float


@dataclass(frozen=True, slots=True)
class _Layer:
    """Kernels in a row that belong to one layer.

    Attributes:
        name: The layer.
        first: Position of its first kernel.
        readers: Positions of those that read weights.
        size: Of these weights, each once [byte].
    """

    name: str
    first: int
    readers: tuple[int, ...]
    size: float


def streamed(tasks: Sequence[Task], estimate: Estimate, depth: int) -> tuple[list[Task], Streamed]:
    """Return tasks with a copy of each layer's weights from the host before its kernels.

    The copy for a layer starts when all that read the weights of the layer ``depth + 1`` before it have ended, since it
    takes their place: 0 is one buffer, whose copy nothing hides, and 1 is double buffering. Weights that several
    layers read are copied for each.

    Raises:
        UsageError: The program has no weights.
        MissingFigure: The chip lists no link to the host.
    """
    layers = _layers(tasks, estimate)
    if not layers:
        raise UsageError(f"prefetch={depth}: {estimate.graph.name} has no weights that could come from the host")
    sizes = np.array([layer.size for layer in layers])
    seconds, memory = copy_seconds(estimate.chip, sizes)
    groups, links = [[task] for task in tasks], dict[str, tuple[str, ...]]()
    for at, layer in enumerate(layers):
        before = layers[at - 1 - depth].readers if at > depth else ()
        copy = Task(f"weights of {layer.name} ({at + 1}/{len(layers)})", "memcpy_h2d", layer.name, COPY_IN,
                    float(seconds[at]), before, memory=float(memory[at]), bound=BOUNDS[COMMUNICATION])  # fmt: skip
        groups[layer.first].insert(0, copy)
        links.update((tasks[reader].name, (copy.name,)) for reader in layer.readers)
    room = max(float(sizes[at : at + depth + 1].sum()) for at in range(len(layers)))
    return spliced(groups, links), Streamed(depth, float(sizes.sum()), room)


def _layers(tasks: Sequence[Task], estimate: Estimate) -> list[_Layer]:
    """Return the layers that have weights, in the order in which they run."""
    graph = estimate.graph
    storage, size = aliases(graph), dict[str, float]()
    for name, tensor in graph.tensors.items():
        if tensor.kind in _STORED and storage.root(name) == name:
            size[name] = float(evaluate(nbytes(tensor), estimate.grid.sizes))
    read = [
        {storage.root(name) for node in graph.kernels[task.name] for name in node.inputs} & size.keys()
        for task in tasks
    ]
    layers = list[_Layer]()
    for (layer, _), run in groupby(range(len(tasks)), key=lambda at: (tasks[at].layer, tasks[at].phase)):
        members = list(run)
        readers = tuple(at for at in members if read[at])
        stored = sorted(set[str]().union(*(read[at] for at in readers)))
        layers += [_Layer(layer, members[0], readers, sum(map(size.__getitem__, stored)))] if readers else []
    return layers


def copy_seconds(chip: Chip, sizes: Any) -> tuple[Any, Any]:
    """Return the time of copies from page-locked memory of the host [s], and their share of the device's memory.

    Args:
        chip: The device.
        sizes: Bytes of each [byte].
    """
    b = Builder("copy", "int8")
    (kernel,) = kernels(b.graph([b.op("memcpy_h2d", b.input("x", (symbol("N"),)))]))
    row = replace(kernel.at({"N": sizes}), read=sizes, write=sizes)
    time = kernel_time(row, chip)
    return time.expected, np.minimum(sizes / chip.bandwidth / time.expected, 1.0)
