"""Which operators share a kernel, by policy: relabelling only, so FLOPs and outputs stay and bytes never grow.

==========  ==========================================================================================================
policy      kernels
==========  ==========================================================================================================
eager       one per operator: all that was internal is written out and read back
pointwise   producers and consumers that are elementwise, of equal size
chains      elementwise, row-wise and reducing operators that sweep the same elements (mode ``compiled``)
inductor    as torch.compile makes them (:mod:`roofline.passes.fusion.inductor`); estimates take its matmuls as padded
flash       attention from scores to values (:mod:`roofline.passes.fusion.flash`)
ideal       everything around one contraction: the bound of what fusing can save (:mod:`roofline.passes.fusion.ideal`)
==========  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Lifetimes
from roofline.passes.fusion.chains import chains
from roofline.passes.fusion.flash import flash
from roofline.passes.fusion.ideal import ideal
from roofline.passes.fusion.inductor import inductor
from roofline.passes.history import graph_pass

_POINTWISE = frozenset({"pointwise"})


@graph_pass
def unfuse(graph: Graph) -> Graph:
    """Run every node as a kernel of its own, so that all that was internal is written out and read back.

    FLOPs and outputs stay; bytes never shrink.

    Args:
        graph: The program.

    Returns:
        The same nodes without kernel labels.

    Example:
        >>> import roofline as rl
        >>> flash = rl.model("gpt2", phase="forward", layers=1)
        >>> rl.count(unfuse(flash), B=1, S=1024).bytes > rl.count(flash, B=1, S=1024).bytes
        True
    """
    lifetimes = Lifetimes() if graph.info.lifetimes.planned else graph.info.lifetimes
    plain = graph.with_info(grouped="", kernels=None, lifetimes=lifetimes)
    return replace(plain, nodes=tuple(replace(node, kernel="") for node in graph.nodes))


#: The policies in the order of the table above.
POLICIES: Mapping[str, Callable[[Graph], Graph]] = MappingProxyType({
    "eager": unfuse,
    "pointwise": lambda graph: chains(graph, _POINTWISE),
    "chains": chains,
    "inductor": inductor,
    "flash": flash,
    "ideal": ideal,
})  # fmt: skip


@graph_pass
def fuse(graph: Graph, policy: str = "chains") -> Graph:
    """Give the operators of a program kernels by a policy.

    FLOPs and outputs stay. Kernels that the program already has stay whole, except under ``eager``. No policy moves
    more bytes than ``eager`` and none fewer than ``ideal``.

    Args:
        graph: The program.
        policy: ``eager``, ``pointwise``, ``chains``, ``inductor``, ``flash`` or ``ideal``.

    Returns:
        The same nodes under other kernel labels.

    Raises:
        UsageError: No policy of that name.
        UnknownOp: A node's operator is not registered.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("chain", "fp32")
        >>> x = b.input("x", (1024,))
        >>> for _ in range(5):
        ...     x = b.op("relu", x)
        >>> before, after = count(b.graph([x])), count(fuse(b.graph([x])))
        >>> before.bytes // 4096, after.bytes // 4096
        (10, 2)
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        near = did_you_mean(str(policy), POLICIES)
        raise UsageError(f"unknown fusion policy {str(policy)[:60]!r}; allowed: {', '.join(POLICIES)}{near}")
    return POLICIES[policy](graph)
