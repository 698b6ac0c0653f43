"""When PyTorch frees what a program allocates: from the calls between which memory was freed, to nodes of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from roofline.frontends.torch.program import Program, Value
from roofline.ir.graph import Graph, Lifetimes, Tensor
from roofline.ops.aliases import aliases


def lifetimes(
    program: Program, names: Mapping[int, str], whole: Graph, ends: Sequence[str], graph: Graph
) -> Lifetimes:  # fmt: skip
    """Return which tensors of a graph share memory, and after which node each is freed.

    Args:
        program: What was captured.
        names: The tensor that holds each value, by the value's number.
        whole: All that its calls became.
        ends: The latest node of that after each call.
        graph: What is left of it.
    """
    if not program.freed:
        return Lifetimes()
    nodes, counts, root = [node.name for node in graph.nodes], _counts(whole, ends, graph), aliases(graph).root
    freed, within, unread = dict[str, str](), dict[str, str](), list[tuple[Tensor, str, str]]()
    sources = {value.memory: names[value.number] for value in program.sources if value.number in names}
    for memory, values in _by_memory(program).items():
        roots = dict.fromkeys(root(names.get(value.number, "")) for _, value in values)
        own = [name for name in roots if name in graph.tensors and graph.tensors[name].kind == "activation"]
        own = [name for name in own if name not in freed]
        calls = program.freed.get(memory)
        last = len(nodes) if calls is None else counts[calls]
        end = "" if calls is None else nodes[last - 1]
        if own:
            owner = sources.get(memory) or own.pop(0)
            within.update(dict.fromkeys(own, owner))
            freed.update({} if memory in sources else {owner: end})
        elif memory not in sources:
            at, value = values[0]
            first = counts[at + 1] - (counts[at + 1] > counts[at])
            if first < last and not program.calls[at].kernel and 0 not in value.shape:
                unread.append((Tensor("", value.shape, value.dtype), nodes[first], end))
    return Lifetimes(freed, within, tuple(unread))


def _counts(whole: Graph, ends: Sequence[str], graph: Graph) -> list[int]:
    """Return how many nodes of what is left of a graph there are before the first call and after each."""
    stays = {node.name for node in graph.nodes}
    number = accumulate(node.name in stays for node in whole.nodes)
    until = dict(zip((node.name for node in whole.nodes), number, strict=True))
    return [0, *(until.get(name, 0) for name in ends)]


def _by_memory(program: Program) -> Mapping[int, list[tuple[int, Value]]]:
    """Return what calls return and write by the memory that it lies in, each with the number of its call."""
    values: dict[int, list[tuple[int, Value]]] = {}
    for at, call in enumerate(program.calls):
        written = [value for write in call.writes for value in (write.after, *(write.base or ()))]
        for value in (*call.outs, *written):
            if value is not None:
                values.setdefault(value.memory, []).append((at, value))
    return values
