"""How collectives are carried out: the steps and bytes of one device for each algorithm, checkable by hand.

A group of ``k`` devices a node on ``m`` nodes passes a message of ``S`` bytes; a network card a device leads out of
the node. What a step costs and how fast bytes move is not said here (:mod:`roofline.cost.network`).

- **ring**: ``n - 1`` steps, ``2 (n - 1)`` of an all-reduce (Patarasuk & Yuan 2009). Across nodes there is a ring for
  each network card; ``m - 1`` of the steps (twice that) leave the node (NVIDIA/nccl, src/graph/tuning.cc).
- **tree**: up and down a double binary tree, ``2 log2`` of its leaves (Sanders et al. 2009). Across nodes it joins the
  nodes, and the devices of a node form a chain, as in NCCL (same file).
- **hierarchical**: reduce-scatter in the node, a ring of each device with its peers on other nodes, all-gather in the
  node, one after the other.
- **one_shot**, **two_shot**: every device reads from all others directly: the whole of their messages, or first its
  part of them and then the sums (the custom all-reduce of vLLM, SGLang and TensorRT-LLM). In one node.
- **in_switch**: switches add and multicast (NVLink SHARP): a device sends its message and its part of the sum.
- **direct**: each message straight to its peer: an all-to-all, a send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Plan:
    """What an algorithm has each device do, per byte of the message.

    Attributes:
        steps: One after the other, between devices of a node.
        wire: Bytes that a device sends to others of its node, per byte of the message.
        node_steps: One after the other, between nodes.
        node_wire: Bytes that a device's network card sends, per byte of the message.
        overlap: Whether both links move bytes at the same time.
        kind: ``library`` (protocols of a communication library), ``shot`` (one kernel that reads from peers) or
            ``switch``.
        tree: Whether bytes pass a tree, which reaches less of a link than a ring.
    """

    steps: Any
    wire: Any
    node_steps: Any = 0
    node_wire: Any = 0
    overlap: bool = True
    kind: str = "library"
    tree: bool = False


def passes(op: str) -> int:
    """Times that a message goes round: to be added up, and to be handed out."""
    return 2 if op == "all_reduce" else 1


def factor(op: str, devices: Any) -> Any:
    """Bytes that a device puts on the wire, per byte of the message (NVIDIA nccl-tests, PERFORMANCE.md).

    Example:
        >>> factor("all_reduce", 8), factor("all_gather", 8), factor("broadcast", 8)
        (1.75, 0.875, 1)
    """
    if op in ("broadcast", "send"):
        return 1
    return passes(op) * (devices - 1) / devices


def ring(op: str, inside: Any, nodes: Any) -> Plan:
    """A ring through all devices, or a pipelined chain where one device has it all.

    Example:
        >>> one = ring("all_reduce", 8, 1)
        >>> float(one.steps), float(one.wire)
        (14.0, 1.75)
    """
    devices, many = inside * nodes, np.greater(nodes, 1)
    moved = factor(op, devices)
    return Plan(
        steps=passes(op) * (devices - nodes),
        wire=moved * np.where(many, (inside - 1) / inside, 1.0),
        node_steps=passes(op) * (nodes - 1),
        node_wire=np.where(many, moved / inside, 0.0),
    )


def tree(op: str, inside: Any, nodes: Any) -> Plan:
    """Up and down a double binary tree; of nodes where there are several, of devices otherwise.

    A leaf that has two children in the other tree sends ``S/2`` up in both and ``S/2`` down to each: twice the
    message; of two nodes each sends it once.

    Example:
        >>> int(tree("all_reduce", 8, 1).steps), int(tree("all_reduce", 8, 16).node_steps)
        (6, 8)
    """
    many = np.greater(nodes, 1)
    depth = np.where(many, inside - 1, np.ceil(np.log2(np.maximum(inside, 1))))
    return Plan(
        steps=(passes(op) * depth)[()],
        wire=np.where(many, factor(op, inside), np.minimum(inside / 2, 2.0)),
        node_steps=passes(op) * np.ceil(np.log2(nodes)),
        node_wire=np.where(many, np.minimum(nodes / 2, 2.0) / inside, 0.0),
        tree=True,
    )


def hierarchical(op: str, inside: Any, nodes: Any) -> Plan:
    """In the node, across nodes, in the node again."""
    return Plan(
        steps=passes(op) * (inside - 1),
        wire=factor(op, inside),
        node_steps=passes(op) * (nodes - 1),
        node_wire=factor(op, nodes) / inside,
        overlap=False,
    )


def one_shot(op: str, inside: Any, nodes: Any) -> Plan:
    """Each device reads what it needs from every other, at once."""
    return Plan(steps=1, wire=inside - 1 if op == "all_reduce" else factor(op, inside), kind="shot")


def two_shot(op: str, inside: Any, nodes: Any) -> Plan:
    """Each device adds up its part of all messages, then reads the other parts."""
    return Plan(steps=2, wire=factor(op, inside), kind="shot")


def in_switch(op: str, inside: Any, nodes: Any) -> Plan:
    """A device sends its message to be added up on the way, and its part of the sum to be multicast."""
    return Plan(steps=2, wire=(inside + 1) / inside, kind="switch")


def direct(op: str, inside: Any, nodes: Any) -> Plan:
    """Each part straight to its peer, which all are on their way at once; all of a send."""
    many = np.greater(nodes, 1)
    if op == "send":
        return Plan(np.where(many, 0, 1), np.where(many, 0, 1), np.where(many, 1, 0), np.where(many, 1, 0))
    devices = inside * nodes
    return Plan(devices - 1, (inside - 1) / devices, np.where(many, 1, 0), (devices - inside) / devices)


def least(op: str, inside: Any, nodes: Any) -> tuple[Any, Any]:
    """Bytes that a device must send in its node and by its network card at least, per byte of the message.

    Switches that add on the way halve an all-reduce.

    Example:
        >>> [float(part) for part in least("all_reduce", 8, 2)]
        [1.0, 0.125]
    """
    if op in ("alltoall", "send"):
        plan = direct(op, inside, nodes)
        return plan.wire, plan.node_wire
    here = np.where(np.greater(inside, 1), np.minimum(factor(op, inside), 1.0), 0.0)
    there = np.where(np.greater(nodes, 1), np.minimum(factor(op, nodes), 1.0) / inside, 0.0)
    return here[()], there[()]


Algorithm = Callable[[str, Any, Any], Plan]

#: Every algorithm by name.
ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring, "tree": tree, "hierarchical": hierarchical, "one_shot": one_shot, "two_shot": two_shot,
    "in_switch": in_switch, "direct": direct,
}  # fmt: skip

#: Algorithms of each operator: what NCCL chooses from, then what serving stacks and other libraries add.
_CHOICES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (("ring", "tree"), ("hierarchical", "one_shot", "two_shot", "in_switch")),
    "all_gather": (("ring",), ("hierarchical", "one_shot")),
    "reduce_scatter": (("ring",), ("hierarchical", "one_shot")),
    "broadcast": (("ring",), ()),
    "alltoall": (("direct",), ()),
    "send": (("direct",), ()),
}

#: Ways to choose, besides naming an algorithm: the fastest that NCCL has, that serving stacks have, or that there is.
POLICIES = ("nccl", "serving", "fastest")
#: Message up to which serving stacks run kernels that read from their peers, and NCCL beyond [byte] (vllm-project/vllm,
#: vllm/distributed/device_communicators/custom_all_reduce.py, ``max_size``).
SERVED = 8 * 2**20

#: Algorithms that need several nodes, and those that only work inside one.
_ACROSS, _SHOTS = frozenset({"hierarchical"}), frozenset({"one_shot", "two_shot"})
_INSIDE = _SHOTS | {"in_switch"}


def choices(op: str, named: str = "", nodes: Any = 1, in_switch: bool = False) -> tuple[str, ...]:
    """The algorithms to take the fastest of.

    NCCL's tree is a chain inside a node, no faster than its ring, so that there only the ring is left.

    Args:
        op: The collective.
        named: An algorithm, or one of :data:`POLICIES`; ``nccl`` when empty.
        nodes: How many nodes the group spans.
        in_switch: Whether the chip's switches add and multicast.

    Raises:
        UsageError: No such algorithm for this collective, on these links.

    Example:
        >>> choices("all_reduce"), choices("all_reduce", nodes=2), choices("all_reduce", "fastest")
        (('ring',), ('ring', 'tree'), ('ring', 'tree', 'one_shot', 'two_shot'))
    """
    first, more = _CHOICES[op]
    many = bool(np.any(np.greater(nodes, 1)))
    lacking = (_INSIDE if many else _ACROSS) | (frozenset() if in_switch else {"in_switch"})
    able = tuple(name for name in first + more if name not in lacking)
    if named in able:
        return (named,)
    if named == "fastest":
        return able
    library = tuple(name for name in first if name != "tree" or many)
    if named in ("", "nccl", "serving"):
        return library + (tuple(name for name in able if name in _SHOTS) if named == "serving" else ())
    where = f"{op} {'across nodes' if many else 'in one node'}"
    near = did_you_mean(named, (*able, *POLICIES))
    why = " (no switch of this chip adds)" if named == "in_switch" and not in_switch and not many else ""
    raise UsageError(f"{where}: no algorithm {named!r}{why}; allowed: {', '.join((*able, *POLICIES))}{near}")
