"""Which kernels a runtime launches for an operator, where that is not one.

A program's graph has a node for each operator, and so have its counts, its floor and what is diagnosed. What a
framework really launches for it is said here, by a table of rules for each runtime: a rule adds the kernels that run
to a small graph of their own, and each is timed by the formula of its class. The first rule of an operator that
applies counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from roofline.cost.lowering import attention, channels, convolution, moves, rows
from roofline.cost.lowering.rule import Rule, Site, word
from roofline.cost.machine import machine
from roofline.counting.counts import Kernel, kernels
from roofline.hardware.chip import Chip
from roofline.ir.graph import Graph
from roofline.ops.builder import Builder

__all__ = ["EAGER", "RUNTIMES", "Lowered", "Rule", "Site", "lowered", "lowered_graphs", "separate", "word"]

#: PyTorch as it runs on GPUs without a compiler, an operator at a time.
EAGER = "pytorch"


def _by_op(*rules: Rule) -> dict[str, tuple[Rule, ...]]:
    return {op: tuple(rule for rule in rules if rule.op == op) for op in dict.fromkeys(rule.op for rule in rules)}


#: The rules of each runtime, by operator.
RUNTIMES: Mapping[str, Mapping[str, tuple[Rule, ...]]] = {
    "": {},
    EAGER: _by_op(*attention.RULES, *channels.RULES, *convolution.RULES, *moves.RULES, *rows.RULES),
}

#: At which sizes an operator becomes some kernels; ``None`` at all.
At = Callable[[Mapping[str, Any]], Any] | None
#: That, and the kernels.
Lowered = tuple[At, tuple[Kernel, ...]]


def lowered(kernel: Kernel, chip: Chip, runtime: str, flowing: bool, tf32: bool = False) -> tuple[Lowered, ...]:
    """Return the kernels that a runtime launches for an operator, with the sizes at which it does.

    Args:
        kernel: The operator.
        chip: Where it runs.
        runtime: One of :data:`RUNTIMES`; empty for one kernel an operator.
        flowing: Whether what it reads comes from the kernel before it.
        tf32: Whether its fp32 contractions run on the tf32 matrix units.

    Returns:
        What applies, the first where several do; nothing where it runs as one kernel.
    """
    return tuple((at, _real(graph)) for at, graph in lowered_graphs(kernel, chip, runtime, flowing, tf32))


@lru_cache(maxsize=2**12)
def separate(kernel: Kernel, chip: Chip, flowing: bool) -> tuple[Kernel, ...]:
    """Return the kernels that the nodes of one would be, each by itself."""
    site = Site(kernel, chip, Builder(kernel.name), flowing)
    site.apart({tensor.name: site.read(tensor) for tensor in kernel.operands})
    return _real(site.b.graph())


def _real(graph: Graph) -> tuple[Kernel, ...]:
    return tuple(each for each in kernels(graph) if each.main.op != "empty")


def lowered_graphs(
    kernel: Kernel, chip: Chip, runtime: str, flowing: bool, tf32: bool = False
) -> tuple[tuple[At, Graph], ...]:
    """Return the same as graphs: ``empty`` stands for what an operator reads."""
    rules = RUNTIMES[runtime]
    grouped = kernel.kind in ("attention", "reduction")
    if (kernel.main.op not in rules and not grouped) or not machine(chip).is_gpu:
        return ()
    return _lowered(kernel, chip, runtime, flowing, tf32) if word(kernel) in rules else ()


@lru_cache(maxsize=2**14)
def _lowered(kernel: Kernel, chip: Chip, runtime: str, flowing: bool, tf32: bool) -> tuple[tuple[At, Graph], ...]:
    kinds: list[tuple[At, Graph]] = []
    for rule in RUNTIMES[runtime][word(kernel)]:
        site = Site(kernel, chip, Builder(rule.op), flowing, tf32)
        if rule.when(site):
            rule.emit(site)
            kinds.append((rule.at, site.b.graph()))
            if rule.at is None:
                break
    return tuple(kinds)
