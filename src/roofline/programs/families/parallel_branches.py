"""Several graphs as one program: the towers of a multimodal model beside its language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roofline.counting.parameters import active_parameters
from roofline.ir.graph import Graph, Node, Tensor


def beside(main: Graph, others: Mapping[str, Graph], run: bool = True) -> Graph:
    """Join graphs that do not feed each other; sizes of the same name are the same.

    Args:
        main: Whose items are counted and whose names stay.
        others: The others by the prefix of their names.
        run: Whether the others run; otherwise only their weights are there.

    Raises:
        ShapeError: A prefix is already taken.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> gemm = b.graph([b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))])
        >>> beside(gemm, {"vision": gemm}).parameters, len(beside(gemm, {"vision": gemm}, run=False).nodes)
        (8192, 1)
    """
    tensors, nodes, outputs = dict(main.tensors), list(main.nodes), list(main.outputs)
    for prefix, other in others.items():
        for tensor in other.tensors.values():
            if run or tensor.kind == "weight":
                tensors[f"{prefix}.{tensor.name}"] = _renamed(tensor, prefix)
        if run:
            nodes += [_moved(node, prefix) for node in other.nodes]
            outputs += [f"{prefix}.{name}" for name in other.outputs]
    joined = replace(main, tensors=tensors, nodes=tuple(nodes), outputs=tuple(outputs)).validate()
    notes = (note for other in others.values() for note in other.info.notes)
    return joined.with_notes(*notes).with_info(active_parameters=active_parameters(joined))


def _renamed(tensor: Tensor, prefix: str) -> Tensor:
    return replace(tensor, name=f"{prefix}.{tensor.name}")


def _moved(node: Node, prefix: str) -> Node:
    return replace(
        node,
        name=f"{prefix}.{node.name}",
        scope=f"{prefix}.{node.scope}".rstrip("."),
        inputs=tuple(f"{prefix}.{name}" for name in node.inputs),
        outputs=tuple(f"{prefix}.{name}" for name in node.outputs),
        kernel=f"{prefix}.{node.kernel}" if node.kernel else "",
    )
