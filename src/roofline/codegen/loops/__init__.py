"""Programs as explicit loop nests, passes on them, and their text as MLIR."""

from __future__ import annotations

from roofline.codegen.loops import mlir, tensors
from roofline.codegen.loops.choose import Choice, changed
from roofline.codegen.loops.lowering import loop_nests
from roofline.ir.graph import Graph

Text = tuple[str, tuple[str, ...], tuple[str, ...]]


def loops(graph: Graph, choice: Choice | None = None) -> Text:
    """Write a program as loops over buffers; return the module, the names of what ``main`` takes, and of its results.

    Results are handed in behind the inputs.
    """
    program = loop_nests(graph)
    handed = tuple(dict.fromkeys((*program.inputs, *program.outputs)))
    return mlir.module(changed(program, choice or Choice())), handed, program.outputs


def linalg(graph: Graph) -> Text:
    """Write a program as ``linalg`` on tensors; return the module, what ``main`` takes, and its results."""
    program = loop_nests(graph)
    return tensors.module(program), program.inputs, program.outputs
