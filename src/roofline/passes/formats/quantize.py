"""Quantise a program: what is stored, what is multiplied, and what converting between the two costs.

Weights alone: the matmuls stay in the activations' format, and a ``dequantize`` node makes wide numbers of the
narrow ones, inside the matmul's kernel (``fused``, as in Marlin or tinygemm: only narrow bytes move) or as a kernel of
its own (``separate``, as in bitsandbytes: narrow bytes are read, wide ones written and read again). Weights and
activations: the matmuls run on the narrow format's units after a node that quantises what they read, once for all that
read the same. The KV cache: attention reads narrow bytes and dequantises them; new tokens are quantised as they are
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node, Tensor
from roofline.ir.sizes import prod
from roofline.ir.text import shown
from roofline.ops.aliases import aliases
from roofline.ops.quantized import summed_axes
from roofline.ops.registry import OPS
from roofline.passes.formats.conversions import Rewriter
from roofline.passes.formats.scales import ACTIVATIONS, activation_format, cache_format, multiplied_as, weight_format
from roofline.passes.history import graph_pass

#: Nodes and tensors that stay unless a pattern of ``weights`` other than ``*`` names them: embeddings, norms, routers
#: of experts and the output head, which GPTQ, AWQ, LLM.int8 and fp8 recipes leave alone as well.
KEEP = ("*embed*", "*norm*", "*router*", "head", "head.*", "*lm_head*")

Weights = str | Mapping[str, str | None]

#: Operands that may be weights, by class of operator; of moves, tables that are looked up.
_OPERANDS: dict[str, tuple[int, ...]] = {"matmul": (1,), "conv": (1,), "moe": (1, 2), "move": (0,)}
#: The only move that reads weights.
_TABLE = "embedding"
#: Matmuls of a class that no weights are multiplied by.
_NEITHER = frozenset({"triangular_solve", "expert_linear_grad"})


@graph_pass
def quantize(
    graph: Graph,
    *,
    weights: Weights | None = None,
    activations: str | None = None,
    cache: str | None = None,
    keep: Sequence[str] | None = None,
    dequantize: Literal["fused", "separate", "tinygemm"] = "fused",
    scales: Literal["dynamic", "static"] = "dynamic",
) -> Graph:
    """Store weights, activations of matmuls or the KV cache in fewer bits, with scales and the conversions counted.

    FLOPs of contractions stay. Biases, norms and everything elementwise keep their format; so do weights that are
    narrow already.

    Args:
        graph: The program.
        weights: A format for all matrices, or formats by pattern of node or tensor names, of which the last that fits
            wins and ``None`` leaves alone: ``{"*": "int4-g128", "*.down*": "int8"}``. ``int8`` has a scale per row,
            ``int4`` groups of 128, ``fp8`` a scale per row; all others are stored as their names say.
        activations: Format that matmuls take their inputs in: ``int8``, ``fp8``, ``mxfp8``, ``mxfp4`` or ``nvfp4``.
            Without ``weights``, these get the same format. Attention keeps its own.
        cache: Format of the KV cache: ``int8`` and ``int4`` with a scale per token and head, ``fp8`` with one for all.
        keep: Patterns of node or tensor names that stay; by default :data:`KEEP`.
        dequantize: Where narrow weights are dequantised: ``fused``, inside the matmul's kernel, as serving stacks do;
            ``separate``, by a kernel of its own; ``tinygemm``, inside PyTorch's own kernel for int4 weights, which
            suits a few rows.
        scales: Of activations and cache: ``dynamic``, found row by row, or ``static``, known before: then
            quantising is elementwise and compilers fuse it into what comes before.

    Returns:
        The program with its conversions, the graph itself where all is as narrow already.

    Raises:
        UnknownDType: No such format.
        UsageError: A format that does not fit what it is asked for, groups that do not divide a row, a pattern that
            names nothing, no matrix or no cache to quantise.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (1, 4096)), b.weight("w", (4096, 4096)))
        >>> plain, narrow = (count(g).bytes for g in (b.graph([y]), quantize(b.graph([y]), weights="int4-g128")))
        >>> plain - narrow == 4096 * 4096 * (16 - 4.25) / 8
        True
    """
    _check_words(weights, activations, cache, dequantize=(dequantize, _WAYS), scales=(scales, _SCALES))
    work = Rewriter(graph, dequantize, scales)
    if activations is not None:
        activation_format(activations, None, scales)  # before the weights follow it
    stored = {graph.tensors[matrix.root].dtype for matrix in weight_matrices(graph)}
    if activations is None and isinstance(weights, str) and stored == {weights}:
        weights = None
    if weights is not None or activations is not None:
        picked = chosen(graph, weights if weights is not None else str(activations), keep)
        _store_weights(work, picked, activations)
    if cache is not None:
        _store_cache(work, cache)
    return work.graph()


@graph_pass
def dequantize(graph: Graph, way: Literal["fused", "separate"] = "fused") -> Graph:
    """Count how weights are dequantised that a program stores in narrower formats than it multiplies in.

    Checkpoints that are quantised already, as importers read them, and ``cast`` say what is stored and
    no more.

    Args:
        graph: The program.
        way: Inside the matmuls' kernels (``fused``) or by kernels of their own (``separate``).

    Returns:
        The program with its dequantisations.

    Raises:
        UsageError: An unknown word.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline.passes.formats.cast import cast
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (1, 64)), b.weight("w", (64, 64)))
        >>> [node.op for node in dequantize(cast(b.graph([y]), weights="int8")).nodes]
        ['dequantize', 'linear']
    """
    if way not in _WAYS[:2]:
        raise UsageError(f"dequantize: way={way!r}; allowed: {', '.join(_WAYS[:2])}")
    work = Rewriter(graph, way, _SCALES[0])
    for matrix in weight_matrices(graph):
        stored, first = graph.tensors[matrix.root].dtype, graph.tensors[matrix.node.inputs[0]].dtype
        wide = dict(matrix.node.attrs).get("compute", first)
        narrower = DTYPES[stored].bits_per_element < DTYPES[wide].bits_per_element
        if narrower and multiplied_as(stored) != wide and not matrix.dequantised and matrix.node.op != _TABLE:
            work.dequantize(matrix.node, matrix.position, wide)
    return work.graph()


_WAYS, _SCALES = ("fused", "separate", "tinygemm"), ("dynamic", "static")
#: Stored bits and groups that tinygemm takes (PyTorch, aten/src/ATen/native/cuda/int4mm.cu).
_TINY_BITS, _TINY_GROUPS = 4, (32, 64, 128, 256)


def _check_words(
    weights: Weights | None, activations: str | None, cache: str | None, **words: tuple[str, Sequence[str]]
) -> None:
    if weights is None and activations is None and cache is None:
        raise UsageError("nothing to quantise: give weights, activations or cache")
    for option, (value, allowed) in words.items():
        if value not in allowed:
            near = did_you_mean(str(value), allowed)
            raise UsageError(f"{option}={value!r}; allowed: {', '.join(allowed)}{near}")


#: What a reader should know about each way to dequantise.
_REMARKS = {
    "fused": "weights are dequantised inside matmul kernels, as serving stacks do; PyTorch does so for int4 only",
    "separate": "weights are dequantised by separate kernels, whose results the matmuls read: slower than 16 bits",
    "tinygemm": "tinygemm suits a few rows: from about 16 on, matmuls in 16 bits are faster",
}


def formats_by_name(text: str) -> Weights:
    """Read formats of weights as a command line has them: one for all, then exceptions by pattern.

    Raises:
        UsageError: An exception without a pattern or a format.

    Example:
        >>> formats_by_name("int4-g128,*.down*=int8,head=none")
        {'*': 'int4-g128', '*.down*': 'int8', 'head': None}
        >>> formats_by_name("int8")
        'int8'
    """
    first, *others = (part.strip() for part in text.split(","))
    if not others and "=" not in first:
        return first
    table: dict[str, str | None] = {}
    for part in (first if "=" in first else f"*={first}", *others):
        pattern, _, word = (piece.strip() for piece in part.partition("="))
        if not pattern or not word:
            raise UsageError(f"weights={text!r}: {part!r} is not PATTERN=FORMAT, such as *.down*=int8")
        table[pattern] = None if word == "none" else word
    return table


# --- which matrices -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight as a matmul, or a lookup, reads it.

    Attributes:
        node: The matmul, or the lookup.
        position: Of the weight among its inputs.
        root: The tensor that stores it, behind any views.
        row: Elements that are summed over; of a matrix that is seen through views, its own rows.
        dequantised: Whether a dequantisation stands between them.
        ndim: Axes of the tensor that stores it.
    """

    node: Node
    position: int
    root: str
    row: int
    dequantised: bool
    ndim: int

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes of the stored tensor that one output sums over, along which groups lie."""
        if self.root != self.node.inputs[self.position] or self.node.op == _TABLE:
            return (self.ndim - 1,)
        return summed_axes(self.node.op, self.ndim)


def weight_matrices(graph: Graph) -> list[Matrix]:
    """Every weight that a matmul multiplies by, and every table."""
    sources = {n.outputs[0]: n for n in graph.nodes if OPS[n.op].kind == "view" or n.op == "dequantize"}
    every = []
    for node in graph.nodes:
        reads = node.op not in _NEITHER and (OPS[node.op].kind != "move" or node.op == _TABLE)
        for position in _OPERANDS.get(OPS[node.op].kind, ()) if reads else ():
            name = node.inputs[position]
            root, dequantised = name, False
            while root in sources:
                root, dequantised = sources[root].inputs[0], dequantised or sources[root].op == "dequantize"
            tensor, seen = graph.tensors[root], graph.tensors[name]
            if tensor.kind == "weight" and len(seen.shape) > 1:
                row: Any = _row(node, seen) if root == name else tensor.shape[-1]
                every.append(Matrix(node, position, root, int(row), dequantised, len(tensor.shape)))
    return every


def _row(node: Node, weight: Tensor) -> Any:
    """Return how many elements of a weight an operator sums over."""
    return prod(weight.shape[axis] for axis in summed_axes(node.op, len(weight.shape)))


def chosen(graph: Graph, weights: Weights, keep: Sequence[str] | None) -> list[tuple[Matrix, str]]:
    """The matrices to quantise and the word for each one's format."""
    every = weight_matrices(graph)
    if not every:
        raise UsageError(f"{graph.name} has no matmul with a weight; there is nothing to quantise")
    if not isinstance(weights, str | Mapping):
        raise UsageError(f"weights={shown(weights)}: expected a format, or formats by the names of matrices")
    table = {"*": weights} if isinstance(weights, str) else dict(weights)
    matmuls = list(dict.fromkeys(name for matrix in every for name in (matrix.node.name, matrix.root)))
    check_patterns("weights", [pattern for pattern in table if pattern != "*"], matmuls)
    check_patterns("keep", keep or (), [*matmuls, *graph.tensors, *(node.name for node in graph.nodes)])
    words = ((matrix, format_for((matrix.node.name, matrix.root), table, keep)) for matrix in every)
    picked = [(matrix, word) for matrix, word in words if word is not None]
    if not picked:
        raise UsageError(f"{graph.name}: every matrix is excluded; keep=() excludes none")
    return picked


def format_for(names: Sequence[str], table: Mapping[str, str | None], keep: Sequence[str] | None) -> str | None:
    """Return the word for the format of a matrix with some names, ``None`` where it stays as it is.

    Example:
        >>> [format_for([name], {"*": "int8", "*.up": "int4"}, None) for name in ("mlp.up", "mlp.down", "head")]
        ['int4', 'int8', None]
    """
    fits = [pattern for pattern in table if _names(pattern, names)]
    word = table[fits[-1]] if fits else None
    named = keep is None and bool(fits) and fits[-1] != "*"
    stays = any(_names(pattern, names) for pattern in (KEEP if keep is None else keep))
    return word if named or not stays else None


def _names(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def words_for(matrices: Mapping[str, Sequence[str]], weights: Weights, keep: Sequence[str] | None) -> dict[str, str]:
    """Return the words for the formats of matrices, each with its names, that do not stay as they are.

    Raises:
        UsageError: A pattern that names none.
    """
    table = {"*": weights} if isinstance(weights, str) else dict(weights)
    every = [name for names in matrices.values() for name in names]
    check_patterns("weights", [pattern for pattern in table if pattern != "*"], every)
    check_patterns("keep", keep or (), every)
    words = {key: format_for(names, table, keep) for key, names in matrices.items()}
    return {key: word for key, word in words.items() if word is not None}


def check_patterns(option: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = did_you_mean(pattern, names) or f"; some are called {', '.join(names[:4])}"
            raise UsageError(f"{option}: no matrix matches {pattern!r}{near}")


# --- weights --------------------------------------------------------------------------------------------------------


def _store_weights(work: Rewriter, picked: Sequence[tuple[Matrix, str]], activations: str | None) -> None:
    already: list[str] = []
    stored: dict[str, str] = {}
    for matrix, word in picked:
        present = work.before.tensors[matrix.root].dtype
        form = weight_format(word, matrix.row, matrix.node.name)
        if work.way == "tinygemm":
            _check_tiny(matrix, form, activations)
        if matrix.dequantised or DTYPES[form].bits >= DTYPES[present].bits:
            already.append(matrix.root)
            continue
        if stored.setdefault(matrix.root, form) != form:
            raise UsageError(f"{matrix.root} would be stored both as {stored[matrix.root]} and as {form}")
        work.store(matrix.root, form)
    for matrix in weight_matrices(work.before):
        if matrix.root in stored:
            _multiply(work, matrix, stored[matrix.root], activations)
    _remark(work, stored, already, activations)


def _check_tiny(matrix: Matrix, form: str, activations: str | None) -> None:
    fits = DTYPES[form].bits == _TINY_BITS and DTYPES[form].group in _TINY_GROUPS and activations is None
    if not fits or matrix.node.op not in ("linear", "matmul"):
        raise UsageError(
            f"{matrix.node.name}: tinygemm takes int4-g32, int4-g64, int4-g128 or int4-g256 weights and 16-bit "
            f"activations of a linear layer, not {form}; use dequantize='fused'"
        )


def _multiply(work: Rewriter, matrix: Matrix, stored: str, activations: str | None) -> None:
    """Put the conversions around one matmul, or one lookup, which returns wide rows."""
    node, first = matrix.node, work.before.tensors[matrix.node.inputs[0]]
    if activations is None or node.op == _TABLE:
        wide = work.before.tensors[node.outputs[0]] if node.op == _TABLE else first
        work.dequantize(node, matrix.position, dict(node.attrs).get("compute", wide.dtype))
        return
    kind = OPS[node.op].kind
    form = activation_format(activations, first.shape[-1] if kind != "conv" else None, work.scales)
    check_pair(node.name, stored, form)
    unit = multiplied_as(form)
    if multiplied_as(stored) != unit:
        work.dequantize(node, matrix.position, unit)
    if kind == "moe" and matrix.position != min(_OPERANDS["moe"]):
        return
    work.quantize(node, 0, form, by_row=bool(DTYPES[form].group))
    work.change(node, compute=unit)
    if kind == "conv" and work.scales == "dynamic":
        work.notes["scales of convolutions' inputs are static: one per tensor, known in advance"] = None


def check_pair(name: str, stored: str, form: str) -> None:
    """Narrower weights are dequantised to the activations' format; equal ones are multiplied as they are."""
    weight, unit = multiplied_as(stored), multiplied_as(form)
    blocks = unit == "fp4" and stored != form
    if (weight == unit and not blocks) or DTYPES[stored].bits < DTYPES[form].bits:
        return
    need = next(word for word, units in ACTIVATIONS.items() if units == unit and (word == form or unit != "fp4"))
    raise UsageError(
        f"{name}: weights in {stored} cannot meet activations in {form}; store the weights as {need} or narrower"
    )


def _remark(work: Rewriter, stored: Mapping[str, str], already: Sequence[str], activations: str | None) -> None:
    """Notes for the reader."""
    if stored:
        forms = ", ".join(sorted(set(stored.values()), key=lambda form: -float(DTYPES[form].bits_per_element))[:4])
        wide = ", ".join(sorted({work.before.tensors[root].dtype for root in stored}))
        how = f"multiplied in {activations}, {work.scales} scales" if activations else f"multiplied in {wide} as before"
        work.notes[f"{len(stored)} matrices stored in {forms}, {how}"] = None
    if already:
        work.notes[f"{len(set(already))} matrices are already quantised and stay as they are"] = None
    if stored and not activations:
        work.notes[_REMARKS[work.way]] = None


# --- cache ----------------------------------------------------------------------------------------------------------


def _store_cache(work: Rewriter, word: str) -> None:
    caches = _caches(work.before)
    if not caches:
        raise UsageError(f"{work.before.name} has no KV cache to quantise")
    uses = _uses(work.before, caches)
    for name in caches:
        tensor = work.before.tensors[name]
        if word == tensor.dtype:
            continue
        form = cache_format(word, tensor.shape[-1], work.scales)
        if DTYPES[form].bits_per_element < DTYPES[tensor.dtype].bits_per_element:
            work.store(name, form)
            _convert(work, uses[name], form, tensor.dtype)


def _caches(graph: Graph) -> list[str]:
    """Caches of keys and values: what attention reads, or positions are written into. Other kept state stays."""
    root = aliases(graph).root
    caches = {
        root(name): None
        for node in graph.nodes
        if OPS[node.op].kind == "attention" or node.op == "cache_update"
        for name in node.inputs
        if graph.tensors[root(name)].kind == "cache"
    }
    return list(caches)


def _uses(graph: Graph, caches: Sequence[str]) -> dict[str, list[tuple[Node, int]]]:
    """Return, for each cache, the nodes that read it or write into it, with the place among their inputs."""
    root = aliases(graph).root
    uses: dict[str, list[tuple[Node, int]]] = {name: [] for name in caches}
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if (cache := root(name)) in uses:
                uses[cache].append((node, position))
    return uses


def _convert(work: Rewriter, uses: Sequence[tuple[Node, int]], form: str, wide: str) -> None:
    """Widen where the cache is read, narrow where it is written."""
    for node, position in uses:
        if OPS[node.op].kind in ("attention", "matmul"):
            work.dequantize(node, position, wide)
        if node.op == "cache_update" and position == 0:
            work.change(node, kernel=node.label)
            work.quantize(node, 1, form, by_row=bool(DTYPES[form].group), kernel=node.label)
