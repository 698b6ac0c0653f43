"""Several graphs as one program: entries of a workload, the towers of a multimodal model beside its language model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from roofline.counting.parameters import active_parameters
from roofline.ir.graph import Graph


def prefixed(graph: Graph, prefix: str) -> Graph:
    """Return a graph all of whose names begin with a prefix."""

    def renamed(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{prefix}.{name}" for name in names)

    return replace(
        graph,
        tensors={f"{prefix}.{key}": replace(t, name=f"{prefix}.{key}") for key, t in graph.tensors.items()},
        nodes=tuple(
            replace(
                node,
                name=f"{prefix}.{node.name}",
                scope=f"{prefix}.{node.scope}".rstrip("."),
                inputs=renamed(node.inputs),
                outputs=renamed(node.outputs),
                kernel=f"{prefix}.{node.kernel}" if node.kernel else "",
            )
            for node in graph.nodes
        ),
        outputs=renamed(graph.outputs),
    )


def beside(main: Graph, others: Mapping[str, Graph], run: bool = True) -> Graph:
    """Join graphs that do not feed each other; sizes of the same name are the same.

    Args:
        main: Whose items are counted and whose names stay.
        others: The others by the prefix of their names.
        run: Whether the others run; otherwise only their weights are there.

    Returns:
        One graph of all of them.

    Raises:
        ShapeError: A prefix is already taken.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> gemm = b.graph([b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))])
        >>> beside(gemm, {"vision": gemm}).parameters, len(beside(gemm, {"vision": gemm}, run=False).nodes)
        (8192, 1)
    """
    parts = [prefixed(other, prefix) for prefix, other in others.items()]
    tensors = {name: t for part in parts for name, t in part.tensors.items() if run or t.kind == "weight"}
    running = parts if run else []
    joined = replace(
        main,
        tensors={**main.tensors, **tensors},
        nodes=(*main.nodes, *(node for part in running for node in part.nodes)),
        outputs=(*main.outputs, *(name for part in running for name in part.outputs)),
    ).validate()
    notes = (note for other in others.values() for note in other.info.notes)
    return joined.with_notes(*notes).with_info(active_parameters=active_parameters(joined))
