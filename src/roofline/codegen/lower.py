"""A program as the text of a compiler's language: one function, and a table of the languages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from roofline.frontends.source import Program, as_graph
from roofline.ir.errors import UnboundSize, UsageError, did_you_mean
from roofline.ir.files import whole_file
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.sizes import size_names

#: For each language the function that writes it, of a graph whose sizes are numbers: its module and its name.
TARGETS: dict[str, tuple[str, str]] = {
    "stablehlo": ("roofline.codegen.stablehlo", "stablehlo"),
}


@dataclass(frozen=True)
class Lowered:
    """A program in a compiler's language.

    From :func:`roofline.lower`.

    Attributes:
        name: Of the program.
        target: The language.
        text: The module.
        sizes: A number for each symbol of the program.
        arguments: What its function is given, in order: tensors of the graph by name.
        results: What it returns, in order.
    """

    name: str
    target: str
    text: str
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text to a file, the whole of it or nothing.

        Raises:
            UsageError: It cannot be written there.
        """
        with whole_file(path) as stream:
            stream.write(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        lines = self.text.count("\n")
        return f"<Lowered {self.name} to {self.target}: {lines:,} lines, {len(self.arguments):,} arguments>"


def lower(program: Program, target: str = "stablehlo", *, phase: str | None = None, **sizes: Any) -> Lowered:
    """Write a program in a compiler's language.

    Weights are arguments. What the graph leaves open, such as where a ``slice`` starts, is what
    :func:`roofline.ops.execute` draws for it, so that the two compute the same.

    Args:
        program: A graph, or anything that :func:`roofline.load_program` takes.
        target: The language: ``"stablehlo"``.
        phase: Of a program given by name; its default when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        The module; ``str()`` of it is its text.

    Raises:
        UsageError: No such language, or a size that the program does not know.
        UnboundSize: A size without a number.
        UnknownOp: An operator that the language has no rule for; names the node.

    Example:
        >>> import roofline as rl
        >>> b = rl.ops.Builder("up", "fp32")
        >>> graph = b.graph([b.op("linear", b.input("x", (4, 8)), b.weight("w", (16, 8)), name="y")])
        >>> print(rl.lower(graph).text.splitlines()[2].strip().partition(" : ")[0])
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
    """
    if target not in TARGETS:
        near = did_you_mean(str(target), TARGETS)
        raise UsageError(f"target={str(target)[:60]!r}; allowed: {', '.join(TARGETS)}{near}")
    graph, numbers = _bound(as_graph(program, phase), sizes)
    module, function = TARGETS[target]
    write: Callable[[Graph], tuple[str, tuple[str, ...], tuple[str, ...]]] = getattr(import_module(module), function)
    text, arguments, results = write(graph)
    return Lowered(graph.name, target, text, MappingProxyType(numbers), arguments, results)


def _bound(graph: Graph, sizes: Mapping[str, Any]) -> tuple[Graph, dict[str, int]]:
    """Return a program whose sizes are numbers, and these."""
    numbers = sizes_of(graph, sizes)
    missing = graph.symbols - numbers.keys()
    if missing:
        raise UnboundSize(f"{graph.name} needs a value for {size_names(missing)}")
    return (graph.bind(**numbers) if numbers else graph), numbers
