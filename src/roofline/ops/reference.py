"""A small numpy executor of the registry's operators: what says whether a rewritten program is the same program.

It runs in double precision whatever a tensor's number format is, draws weights, caches and inputs from their names,
and knows no chip. What an operator leaves open (which function an ``elementwise`` is, where a ``slice`` starts) is
drawn from the name of the node; a node that runs several times runs once.

Asked to round, it rounds what the program stores in 8 bits or fewer: weights along the axis that is summed over,
caches along their rows, activations where a node quantises them. Wider formats stay in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roofline.ir.errors import DoesNotFit, ShapeError, UnboundSize, UnknownOp, UsageError, did_you_mean
from roofline.ir.graph import Graph, Node, Tensor, check_graph
from roofline.ir.report import Report
from roofline.ir.sizes import by_symbol, size_names
from roofline.ops.arrays import Call, draw
from roofline.ops.deviation import Deviation, deviation_of
from roofline.ops.quantized import summed_axes
from roofline.ops.registry import OPS, Array, get_op
from roofline.ops.rounding import Quantized, format_of, quantized

__all__ = ["Sameness", "execute", "same"]

#: Elements that may be alive at once: 2 GiB of double precision.
MOST_ELEMENTS = 2**28
#: Classes of operator that are compared where programs are rounded.
_LAYERS = frozenset({"matmul", "conv", "attention", "moe"})
#: Operators that write numbers in fewer bits.
_NARROWS = frozenset({"quantize", "quantize_rows"})
Watch = Callable[[Node, list[Array], Array], None]


def execute(
    graph: Graph, inputs: Mapping[str, Any] | None = None, seed: int = 0, *, rounding: bool = False, **sizes: int
) -> dict[str, Array]:
    """Run a graph in numpy, on small sizes.

    Args:
        graph: The program.
        inputs: Arrays by tensor name, in place of drawn ones: inputs, weights, buffers, caches. What was rounded before
            (:class:`roofline.quant.Quantized`) is taken as it is.
        seed: Of all that is drawn; the same name and shape gets the same array.
        rounding: Round what is stored in 8 bits or fewer, as its format says.
        sizes: A value for each symbol of the graph.

    Returns:
        The outputs by name, in double precision.

    Raises:
        UnboundSize: Symbols without a value.
        UsageError: An array for a tensor that is not there, an operator without a meaning, or a format to round to that
            nothing defines.
        ShapeError: An array of another shape than the tensor.
        DoesNotFit: More elements alive at once than the executor takes.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("double", "fp32")
        >>> x = b.input("x", (3,))
        >>> execute(b.graph([b.op("add", x, x, name="y")]), {"x": [1, 2, 3]})
        {'y': array([2., 4., 6.])}
    """
    return run(graph, inputs, seed, rounding, None, sizes)


def run(
    graph: Graph, inputs: Mapping[str, Any] | None, seed: int, rounding: bool, watch: Watch | None,
    sizes: Mapping[str, int],
) -> dict[str, Array]:  # fmt: skip
    """Run a graph as :func:`execute` does, and show what each node reads and computes."""
    check_graph(graph, "execute", "it")
    bound, inputs = _bound(graph, sizes), inputs or {}
    ready, folded = _checked(bound, inputs), bound.info.folded
    if folded is not None:  # what was computed ahead of the program, from what it was computed of
        ready = {**execute(folded, {n: a for n, a in ready.items() if n in folded.tensors}, seed), **ready}
    last, axes = _last_reads(bound), _summed_axes(bound) if rounding else {}
    _check_size(bound, last)
    values: dict[str, Array] = {}

    def value(name: str) -> Array:
        if name not in values:
            tensor = bound.tensors[name]
            values[name] = ready[name] if name in ready else _drawn(tensor, seed)
            if rounding and tensor.kind in ("weight", "cache") and not isinstance(inputs.get(name), Quantized):
                values[name] = _rounded(tensor, values[name], axes.get(name, (-1,)), tensor.kind == "weight")
        return values[name]

    for at, node in enumerate(bound.nodes):
        arrays = [value(name) for name in node.inputs]
        result = _run(bound, node, arrays, seed)
        if rounding and node.op in _NARROWS:
            result = _rounded(bound.tensors[node.outputs[0]], result, (-1,), rows=False)
        values[node.outputs[0]] = result
        if watch is not None:
            watch(node, arrays, result)
        for name in (*node.inputs, *node.outputs):
            if last.get(name, at) <= at:
                values.pop(name, None)
    return {name: value(name) for name in bound.outputs}


def _summed_axes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The axes of weights that are summed over; of those that views turn, the last one as they are stored."""
    behind = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op == "dequantize"}
    axes: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes:
        for name in node.inputs[1:] if OPS[node.op].kind in _LAYERS else ():
            tensor = graph.tensors[behind.get(name, name)]
            if tensor.kind == "weight" and len(tensor.shape) > 1:
                axes.setdefault(tensor.name, summed_axes(node.op, len(tensor.shape)))
    return axes


def _rounded(tensor: Tensor, values: Array, axis: tuple[int, ...], rows: bool) -> Array:
    """Round an array to a tensor's format; one that says nothing of scales has one for all, or for each row."""
    form = format_of(tensor.dtype, "channel" if rows else "tensor")
    if form is None or not values.ndim:
        return values
    try:
        return quantized(values, form, axis).values
    except UsageError as error:
        raise UsageError(f"{tensor.name}: {error}") from None


def _bound(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    folded = graph.info.folded
    symbols = graph.symbols | (folded.symbols if folded else frozenset())
    sizes = by_symbol(sizes, symbols)
    missing = symbols - sizes.keys()
    if missing:
        raise UnboundSize(f"{graph.name} needs a value for {size_names(missing)}")
    return graph.bind(**sizes) if sizes else graph


def _checked(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    folded = graph.info.folded
    tensors = {**(folded.tensors if folded else {}), **graph.tensors}
    sources = {name: tensor for name, tensor in tensors.items() if tensor.kind != "activation"}
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in inputs.items()}
    for name, array in arrays.items():
        if name not in sources:
            near = did_you_mean(name, sources) or f"; it reads {', '.join(list(sources)[:8])}"
            raise UsageError(f"{graph.name}: no input is called {name!r}{near}")
        if array.shape != sources[name].shape:
            raise ShapeError(f"{graph.name}: {name!r} is {list(sources[name].shape)}, not {list(array.shape)}")
    return arrays


def _last_reads(graph: Graph) -> dict[str, int]:
    last = {name: at for at, node in enumerate(graph.nodes) for name in node.inputs}
    return {**last, **dict.fromkeys(graph.outputs, len(graph.nodes))}


def _check_size(graph: Graph, last: Mapping[str, int]) -> None:
    """Refuse what would not fit, before anything is computed."""
    live, most, alive = 0, 0, set[str]()
    for at, node in enumerate(graph.nodes):
        fresh = {*node.inputs, *node.outputs} - alive
        alive |= fresh
        live += sum(graph.tensors[name].numel for name in fresh)
        most = max(most, live)
        done = {name for name in (*node.inputs, *node.outputs) if last.get(name, at) <= at}
        live -= sum(graph.tensors[name].numel for name in done & alive)
        alive -= done
    if most > MOST_ELEMENTS:
        raise DoesNotFit(
            f"{graph.name}: {most:.3g} elements are alive at once, the executor takes {MOST_ELEMENTS:.3g}; "
            "smaller sizes, fewer layers or a narrower model say as much"
        )


def _numbers(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor without symbols."""
    return tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]


def _drawn(tensor: Tensor, seed: int) -> Array:
    """Draw contents that belong to a name: whole numbers for indices, flags, positive vectors, scaled matrices."""
    dice, shape = draw(seed, tensor.name), _numbers(tensor)
    if tensor.dtype == "bool":
        return dice.integers(0, 2, shape).astype(np.float64)
    if tensor.dtype.startswith("int") and tensor.kind == "input":
        return dice.integers(0, 2**15, shape).astype(np.float64)
    if tensor.kind in ("weight", "buffer") and len(shape) < 2:
        return dice.uniform(0.5, 1.5, shape)
    fan_in = int(np.prod(shape[1:], dtype=np.int64)) if tensor.kind in ("weight", "buffer") else 1
    return dice.standard_normal(shape) / np.sqrt(fan_in)


def _run(graph: Graph, node: Node, arrays: Iterable[Array], seed: int) -> Array:
    reference = get_op(node.op, node.name).reference
    if reference is None:
        near = did_you_mean(node.op, [name for name, op in OPS.items() if op.reference is not None])
        raise UnknownOp(f"{node.name}: the executor has no reference implementation of {node.op}{near}")
    if len(node.outputs) != 1:
        raise UsageError(
            f"{node.name}: {node.op} writes {len(node.outputs)} tensors; the executor handles one per node"
        )
    output = graph.tensors[node.outputs[0]]
    shape = _numbers(output)
    call = Call(node.name, node.op, dict(node.attrs), shape, output.dtype, seed)
    with np.errstate(all="ignore"):
        result = reference(call, *arrays)
    if result.shape != shape:
        raise ShapeError(f"{node.name}: {node.op} gives {list(result.shape)} where the graph has {list(shape)}")
    return result


@dataclass(frozen=True, slots=True)
class Sameness(Report):
    """What a comparison of two programs found; true where they agree.

    From :func:`roofline.ops.same`.

    Attributes:
        differences: For each output of the first program, the largest difference over its largest magnitude.
        tolerance: The largest difference that counts as agreement.
        layers: With rounding: SQNR, cosine and largest error of each matmul, convolution and attention that both have,
            and of each output.
    """

    differences: Mapping[str, float]
    tolerance: float
    layers: Mapping[str, Deviation] = field(default_factory=dict)
    schema = "sameness"

    @property
    def largest(self) -> float:
        """The largest of the differences."""
        return max(self.differences.values(), default=0.0)

    def __bool__(self) -> bool:
        return self.largest <= self.tolerance

    def records(self) -> list[dict[str, Any]]:
        """Return one row per layer, where there are some, and else one per output."""
        if self.layers:
            return [{"name": name, **each.row()} for name, each in self.layers.items()]
        return [{"name": name, "largest_error": each} for name, each in self.differences.items()]

    def __str__(self) -> str:
        worst = max(self.differences, key=lambda name: self.differences[name])
        word = "agree" if self else "differ"
        text = f"{len(self.differences)} outputs {word}: {worst!r} by {self.largest:.2g} (tolerance {self.tolerance:g})"
        if not self.layers:
            return text
        least = min(self.layers, key=lambda name: self.layers[name].sqnr_db)
        return f"{text}; SQNR at least {self.layers[least].sqnr_db:.1f} dB, in {least!r}"


def same(
    before: Graph,
    after: Graph,
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
    rounding: bool = False,
    inputs: Mapping[str, Any] | None = None,
    instead: Mapping[str, Any] | None = None,
    **sizes: int,
) -> Sameness:
    """Run two programs on the same random inputs and weights and compare their outputs.

    Args:
        before: A program.
        after: The program that should compute the same, with its outputs in the same order.
        tolerance: The largest difference, over the largest magnitude of an output, that counts as agreement.
        seed: Of inputs, weights and all that operators leave open.
        rounding: Round what the programs store in 8 bits or fewer, and compare layer by layer.
        inputs: Arrays by tensor name for both, in place of drawn ones.
        instead: Arrays that the second program gets in place of those: weights that were rounded.
        sizes: A value for each symbol.

    Returns:
        Whether they agree, with the differences of each output; with rounding, the error of each layer.

    Raises:
        UsageError: The outputs differ in number, or are not finite, so that nothing can be compared.
        ShapeError: An output has another shape.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> def program(op: str) -> Graph:
        ...     b = Builder(op, "fp32")
        ...     return b.graph([b.op(op, b.input("x", (64,)), name="y")])
        >>> bool(same(program("relu"), program("relu"))), bool(same(program("relu"), program("gelu")))
        (True, False)
    """
    for graph in (before, after):
        check_graph(graph, "same", "it")
    if len(before.outputs) != len(after.outputs):
        raise UsageError(f"{before.name} has {len(before.outputs)} outputs but {after.name} {len(after.outputs)}")
    results: dict[str, Array] = {}
    layers: dict[str, Deviation] = {}

    def keep(node: Node, arrays: list[Array], result: Array) -> None:
        if OPS[node.op].kind in _LAYERS:
            results[node.outputs[0]] = result

    def compare(node: Node, arrays: list[Array], result: Array) -> None:
        wide = results.pop(node.outputs[0], None)
        if wide is not None and wide.shape == result.shape:
            layers[node.name] = deviation_of(wide, result)

    first = run(before, inputs, seed, rounding, keep if rounding else None, sizes)
    second = run(after, {**(inputs or {}), **(instead or {})}, seed, rounding, compare if rounding else None, sizes)
    pairs = list(zip(before.outputs, after.outputs, strict=True))
    differences = {name: _difference(name, first[name], second[other]) for name, other in pairs}
    ends = {name: deviation_of(first[name], second[other]) for name, other in pairs} if rounding else {}
    return Sameness(differences, tolerance, {**layers, **ends})


def _difference(name: str, a: Array, b: Array) -> float:
    if a.shape != b.shape:
        raise ShapeError(f"output {name!r} is {list(a.shape)} before and {list(b.shape)} after")
    finite = np.isfinite(a)
    if a.size and not finite.any():
        raise UsageError(
            f"output {name!r} is not finite anywhere on random input, so nothing can be compared; try another seed"
        )
    if (finite != np.isfinite(b)).any():
        return float("inf")
    scale = np.abs(a[finite]).max(initial=0.0)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / (scale or 1.0))
