"""A program as the text of a compiler's language: one function, and a table of the languages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
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
    "loops": ("roofline.codegen.loops", "loops"),
    "linalg": ("roofline.codegen.loops", "linalg"),
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


def lower(
    program: Program, target: str = "stablehlo", *, phase: str | None = None, fuse_loops: bool = False,
    tile: Sequence[int] = (), vectorise: int = 0, unroll: int = 0, parallel: bool = False, **sizes: Any,
) -> Lowered:  # fmt: skip
    """Write a program in a compiler's language.

    Weights are arguments. What the graph leaves open, such as where a ``slice`` starts, is what
    :func:`roofline.ops.execute` draws for it, so that the two compute the same.

    Args:
        program: A graph, or anything that :func:`roofline.load_program` takes.
        target: The language: ``"stablehlo"``, ``"loops"`` (MLIR's ``scf``, ``memref`` and ``vector``) or ``"linalg"``.
        phase: Of a program given by name; its default when absent.
        fuse_loops: Of loops: make neighbours over the same range one. A loop that may not be changed so stays as it
            is, here and below.
        tile: Of loops: turns of a tile along the rows, columns and sum of each contraction; the last may be left out.
        vectorise: Of loops: lanes of the vectors that innermost loops run as; 0 for none.
        unroll: Of loops: copies of the body of innermost loops; 0 for none.
        parallel: Of loops: mark outermost ones whose turns may run side by side.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        The module; ``str()`` of it is its text.

    Raises:
        UsageError: No such language, a size that the program does not know, or what is done to loops where there are
            none.
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
    options = _loop_options(
        target, fuse_loops=fuse_loops, tile=tile, vectorise=vectorise, unroll=unroll, parallel=parallel
    )
    graph, numbers = _bound(as_graph(program, phase), sizes)
    module, function = TARGETS[target]
    write: Callable[..., tuple[str, tuple[str, ...], tuple[str, ...]]] = getattr(import_module(module), function)
    text, arguments, results = write(graph, *options)
    return Lowered(graph.name, target, text, MappingProxyType(numbers), arguments, results)


def _loop_options(target: str, **options: Any) -> tuple[Any, ...]:
    """Return what is done to loops, for the language that has them."""
    from roofline.codegen.loops.choose import Choice

    tile = options.pop("tile")
    sizes = (tile,) if isinstance(tile, int) else tuple(tile)
    named = [name for name, value in {**options, "tile": sizes}.items() if value]
    if target != "loops" and named:
        option = f"--{named[0].replace('_', '-')}"
        raise UsageError(f"{named[0]} ({option}): {target} has no loops of ours; target='loops' (--to loops) has")
    choice = Choice(options.pop("fuse_loops"), sizes, **options)
    return (choice,) if target == "loops" else ()


def _bound(graph: Graph, sizes: Mapping[str, Any]) -> tuple[Graph, dict[str, int]]:
    """Return a program whose sizes are numbers, and these."""
    numbers = sizes_of(graph, sizes)
    missing = graph.symbols - numbers.keys()
    if missing:
        raise UnboundSize(f"{graph.name} needs a value for {size_names(missing)}")
    return (graph.bind(**numbers) if numbers else graph), numbers
