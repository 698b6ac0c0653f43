"""How long the host takes to run a program eagerly: by what it calls and launches, and by how fast it is.

The host of an eager program calls operators, makes views and launches kernels; each takes about as long whatever it
computes. A host is known by the time of one call of an operator (``host`` in the ``[efficiency]`` of a chip's file).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.counting.counts import KernelCount
from roofline.ir.graph import Graph, HostCalls
from roofline.ops.registry import OPS

__all__ = ["LAUNCH", "RANGE", "UNCOUNTED", "VIEW", "calls_of", "error_of", "seconds"]

# Least error of the host-bound rows of measurements/h100-sxm/zoo/models.csv and of the same programs on an H200's host
# (50 settings of 19 programs), where one call takes 21.7 us: leaving each program out, they are off by 21 % on average
# and 98 % by less than RANGE. Fitted to one of the machines, the other's are 25 % off, 96 % by less than that. Calls of
# modules, of functions and of a library's own Python explain no more than these three.
#: A call that launches nothing (a view, an allocation), and a launch, against a call of an operator.
VIEW, LAUNCH = 0.31, 0.58
#: Calls of a training step against those without gradients: autograd records them and finds its way back.
TRAINING = 1.3
#: A host's time lies within this factor of the expected: a machine is as slow again at times, and programs differ.
RANGE = 1.73
#: The same of a program whose calls nobody counted: 38 of 39 eager runs of shipped models (models.csv) lie within.
UNCOUNTED = 2.0
#: Views of a matmul: PyTorch's ``linear`` transposes its weight, and makes a matrix of its input and back
#: (aten/src/ATen/native/Linear.cpp, ``_flatten_nd_linear``).
VIEWS_OF_LINEAR = 3


def calls_of(graph: Graph, rows: Sequence[KernelCount]) -> HostCalls:
    """Return what the host calls in one run.

    What a capture counted grows and shrinks with the kernels that passes have made of the program since. A program
    that nobody captured calls one operator a kernel, and the views of its matmuls.
    """
    kernels = sum(row.kernel.count for row in rows)
    known = graph.info.calls
    if known is not None and known.kernels:
        scale = kernels / known.kernels
        return HostCalls(kernels, known.operators * scale, known.views * scale)
    matmuls = sum(node.count for node in graph.nodes if OPS[node.op].kind == "matmul")
    return HostCalls(kernels, kernels, VIEWS_OF_LINEAR * matmuls)


def error_of(graph: Graph) -> float:
    """Return the factor within which the host's time of a program lies."""
    return RANGE if graph.info.calls is not None else UNCOUNTED


def seconds(graph: Graph, rows: Sequence[KernelCount], launches: Any, host: float, queue: float) -> Any:
    """Return the host's time of one eager run [s].

    Args:
        graph: The program.
        rows: Its kernels.
        launches: Kernels that run.
        host: Time of one call of an operator [s].
        queue: Time to queue a collective [s].
    """
    calls = calls_of(graph, rows)
    queued = sum(row.kernel.count for row in rows if row.kernel.kind == "network")
    work = calls.operators + VIEW * calls.views + LAUNCH * launches
    trained = TRAINING if graph.backward_start is not None else 1.0
    return host * trained * work + queued * max(queue - host * (1 + LAUNCH), 0.0)
