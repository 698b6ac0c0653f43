"""One recorded call of an operator to a graph with its sizes, by the rules that captured programs use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from roofline.counting.counts import count_graph, kernels
from roofline.frontends.torch.forms import BY_RULE, results
from roofline.frontends.torch.profiled import ALIASES, Alias, extra, settled
from roofline.frontends.torch.program import AtenCall, Program, Value, Write
from roofline.frontends.torch.rules import ROWS, RULES, pointwise, views
from roofline.frontends.torch.schemas import FORMATS, Arguments, arguments, value_of
from roofline.frontends.torch.walk import Row, Walk
from roofline.ir.errors import ShapeError
from roofline.ir.graph import Graph
from roofline.ops.builder import Builder
from roofline.ops.registry import broadcast
from roofline.traces.events import Kind, Signature
from roofline.traces.linking import Launch

#: Rules of the views that bring arguments into order.
_VIEW_RULES = {name: row.rule for name, row in views.ROWS.items()}

#: Operators that look at memory or take some, and run no kernel.
_FREE = frozenset({*views.ROWS, *pointwise.ROOM, "resize", "detach", "alias", "lift_fresh", "set", "resolve_conj",
                   "resolve_neg", "result_type", "cudnn_is_acceptable", "is_same_size", "set_data"})  # fmt: skip

#: Operators that only call others, which are recorded themselves, and that no rule knows.
_CALLERS = frozenset({"einsum", "item", "cross_entropy_loss", "nll_loss_nd", "lstm", "gru", "rnn_tanh", "rnn_relu",
                      "lstm_cell", "gru_cell", "embedding_bag", "tensordot", "inner", "outer", "instance_norm",
                      "chain_matmul", "linalg_multi_dot", "bilinear", "cosine_similarity", "pairwise_distance",
                      "feature_dropout", "cdist", "pixel_shuffle", "meshgrid"})  # fmt: skip

#: Nodes of PyTorch's autograd, which only call operators too; one that a user wrote has no number.
_AUTOGRAD = re.compile(r"autograd::engine::.*|torch::autograd::\w+|\w+Backward\d+|detach_?|Optimizer\..*")

#: Operators that PyTorch runs as one kernel where rules make several nodes.
_ONE_KERNEL = frozenset({"addmm", "baddbmm", "addbmm", "nll_loss_forward", "nll_loss2d_forward", "scatter_",
                         "index_put_", "_index_put_impl_", "index_fill_", "scatter_add_", "index_add_"})  # fmt: skip

#: Numbers of values that were not recorded start here: results, views, and matrices as they lie in memory.
_RESULTS, _VIEWS, _LAID = (at * 10**8 for at in (1, 2, 3))


def recorded(op: str, signature: Signature, lists: str = "fp32") -> Graph | None:
    """Return the graph of one recorded call of a PyTorch operator; PyTorch is not needed.

    Args:
        op: Such as ``aten::addmm``.
        signature: Its recorded arguments.
        lists: Number format of tensors in lists, which profilers do not record.

    Returns:
        One operator with its sizes; a graph without kernels for a view; ``None`` where there is no rule, or the
        shapes that it needs were not recorded or contradict each other.

    Example:
        >>> from roofline.counting.counts import count_graph
        >>> call = Signature(dims=((8, 2048, 64), (8, 64, 2048)), types=("c10::BFloat16", "c10::BFloat16"))
        >>> totals = count_graph(recorded("aten::bmm", call))
        >>> totals.flops == 2 * 8 * 2048 * 64 * 2048, totals.bytes == 2 * 8 * (2 * 2048 * 64 + 2048 * 2048)
        (True, True)
    """
    # A record may be cut, of another version or wrong in any way: whatever goes wrong means that it tells nothing.
    try:
        return _cached(op, signature, lists)
    except Exception:
        return None


def triton(signature: Signature, name: str) -> Graph | None:
    """Return the graph of a kernel that Triton generated: its buffers move once each, its arithmetic is not known.

    Which buffers are read and which written is not recorded; the last one is taken for the result.

    Args:
        signature: Recorded buffers; what is no tensor is left out.
        name: Of the kernel.

    Example:
        >>> from roofline.counting.counts import count_graph
        >>> call = Signature(dims=((1024,), (1024,), ()), types=("float", "float", "Scalar"))
        >>> count_graph(triton(call, "triton_poi_fused_cos_0")).bytes
        8192
    """
    try:
        return _triton(signature, name)
    except Exception:  # as above
        return None


@lru_cache(maxsize=16384)
def _cached(op: str, signature: Signature, lists: str) -> Graph | None:
    try:
        graph = _recorded(op, signature, lists)
        if graph is not None:
            kernels(graph)  # what cannot be counted tells nothing either
        return graph
    except Exception:  # kept, so that it is not tried again
        return None


def _recorded(op: str, signature: Signature, lists: str) -> Graph | None:
    name = op.rpartition("::")[2]
    bare = name if name in RULES or name in ALIASES else name.removesuffix("_")
    if bare in _FREE or bare in _CALLERS or _AUTOGRAD.fullmatch(op):
        return Graph(op, {}, ())
    alias = ALIASES.get(bare, Alias(bare))
    row = extra(bare) or ROWS.get(alias.rule)
    call = arguments(op, signature, lists) if row is not None else None
    if row is None or call is None:
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    program = _program(op, row, alias, Arguments(settled(alias, call.named), call.strides), in_place)
    graph = _Recorded(program, {**_VIEW_RULES, alias.rule: row.rule}, "error").graph()
    return _finished(graph, one_kernel=not _ONE_KERNEL.isdisjoint((name, alias.rule)))


class _Recorded(Walk):
    """A program whose results have the shapes that the rule gives them, where nothing else tells."""

    def _settled(self, value: Value, name: str) -> str:
        return name if value.shape == BY_RULE else super()._settled(value, name)


def _program(op: str, row: Row, alias: Alias, call: Arguments, in_place: bool) -> Program:
    """Return the call, and before it the views that bring its arguments into the order that rules know."""
    record = AtenCall(f"{op.partition('::')[0]}.{alias.rule}.recorded", call.named, (), "")
    forms = enumerate(results(row.form, record))
    outs = tuple(Value(_RESULTS + at, "", shape, dtype, "activation") for at, (shape, dtype) in forms)
    args = {key: _once(alias.rule, value, call.strides, outs) for key, value in call.named.items()}
    calls: list[AtenCall] = []
    sources = []
    for key, value in args.items():
        sources += [_laid(each, call.strides) if key == "mat2" else each for each in _values(value)]
        if isinstance(value, Value) and key in alias.heads_inside:
            args[key] = _heads_first(value, args, calls)
        elif isinstance(value, Value) and value != sources[-1]:
            args[key] = _viewed("t", sources[-1], value.shape, {}, calls)
    target = args.get("self")
    writes = (Write(target, outs[0]),) if in_place and outs and isinstance(target, Value) else ()
    calls.append(replace(record, args=args, outs=outs, writes=writes))
    return Program(op, "recorded", tuple(dict.fromkeys(sources)), tuple(calls), outs)


def _values(thing: Any) -> tuple[Value, ...]:
    each = thing if isinstance(thing, tuple) else (thing,)
    return tuple(value for value in each if isinstance(value, Value))


def _once(rule: str, value: Any, strides: dict[int, tuple[int, ...]], outs: tuple[Value, ...]) -> Any:
    """Return an argument without what is not read: a number in a tensor, copies along an axis without stride."""
    if not isinstance(value, Value) or not outs or value.name == "self" or rule not in ("copy", *pointwise.WITH_NUMBER):
        return value
    if not value.shape and rule in pointwise.WITH_NUMBER and outs[0].shape:
        return 1.0
    steps = strides[value.number]
    if not steps:
        return value
    return replace(value, shape=tuple(1 if step == 0 else size for size, step in zip(value.shape, steps, strict=True)))


def _laid(value: Value, strides: dict[int, tuple[int, ...]]) -> Value:
    """Return a matrix as it lies in memory: axes change places in one stored by column, as a linear layer's weight."""
    by_column = len(value.shape) == 2 and strides[value.number][:1] == (1,) and strides[value.number] != (1, 1)
    return replace(value, shape=value.shape[::-1], number=_LAID + value.number) if by_column else value


def _heads_first(value: Value, args: dict[str, Any], calls: list[AtenCall]) -> Value:
    """Return ``(batch, length, heads, width)`` with the heads first.

    Sequences that lie one after the other, ``(length, heads, width)``, are taken for equally long.
    """
    if len(value.shape) == 3:
        ends = next(args[name] for name in ("cum_seq_q", "cu_seqlens_q") if isinstance(args.get(name), Value))
        total, *rest = value.shape
        batch = ends.shape[0] - 1
        if total % batch:
            raise ShapeError("sequences of several lengths")
        value = _viewed("view", value, (batch, total // batch, *rest), {}, calls)
    batch, length, heads, width = value.shape
    return _viewed("transpose", value, (batch, heads, length, width), {"dim0": 1, "dim1": 2}, calls)


def _viewed(op: str, value: Value, shape: tuple[Any, ...], options: dict[str, Any], calls: list[AtenCall]) -> Value:
    view = replace(value, number=_VIEWS + len(calls), shape=shape, kind="activation")
    calls.append(AtenCall(f"aten.{op}.recorded", {"self": value, **options}, (view,), ""))
    return view


def _finished(graph: Graph, *, one_kernel: bool) -> Graph:
    """Let what nobody reads leave the call, and give several nodes of one kernel its label."""
    nodes = graph.nodes
    if one_kernel:
        nodes = tuple(replace(node, kernel="call") for node in nodes)
    read = {name for node in nodes for name in node.inputs}
    written = [name for node in nodes for name in node.outputs if name not in read]
    return replace(graph, nodes=nodes, outputs=tuple(dict.fromkeys([*graph.outputs, *written])))


# --- a whole trace ----------------------------------------------------------------------------------------------------


def formulas(launches: Sequence[Launch]) -> tuple[Graph | None, ...]:
    """Return the graph of each launch's operator, ``None`` where there is none.

    Launches of one ``call`` share its graph. On a CPU an operator whose work the operators inside it do, such as
    ``aten::linear`` over ``aten::addmm``, has a graph without kernels.
    """
    lists = _common_format(launches)
    graphs = [_formula(launch, lists) for launch in launches]
    places = {launch.call: at for at, launch in enumerate(launches) if launch.kind is Kind.OP}
    inner: dict[int, tuple[float, float]] = {}
    for at in sorted(places.values(), key=lambda at: -len(launches[at].path)):
        done, graph = inner.get(at, (0, 0)), graphs[at]
        own = _work(graph) if graph is not None else (0, 0)
        if _passes_on(own, done):
            graphs[at] = Graph(launches[at].op, {}, ())
        outer = places.get(launches[at].inside)
        if outer is not None:
            sums = inner.get(outer, (0, 0))
            most = max(own, done)
            inner[outer] = (sums[0] + most[0], sums[1] + most[1])
    return tuple(graphs)


def _formula(launch: Launch, lists: str) -> Graph | None:
    if launch.signature is None:
        return Graph(launch.op, {}, ()) if _AUTOGRAD.fullmatch(launch.op) else None
    if "::" not in launch.op and launch.kind is Kind.KERNEL and launch.name.startswith(launch.op):
        return triton(launch.signature, launch.op)
    return recorded(launch.op, launch.signature, lists)


def _common_format(launches: Sequence[Launch]) -> str:
    """Return the number format of most tensors, taken for those in lists."""
    names = Counter(each.signature.types for each in launches if each.signature is not None)
    formats: Counter[str] = Counter()
    for types, times in names.items():
        for type_ in types:
            if FORMATS.get(type_, "int").startswith(("fp", "bf")) and type_ != "double":
                formats[FORMATS[type_]] += times
    return formats.most_common(1)[0][0] if formats else "fp32"


@lru_cache(maxsize=16384)
def _work(graph: Graph) -> tuple[float, float]:
    totals = count_graph(graph)
    return float(totals.flops), float(totals.bytes)


def _passes_on(own: tuple[float, float], inner: tuple[float, float]) -> bool:
    """Tell whether what is inside has the FLOPs of an operator; of one without any, moves its bytes."""
    return inner[0] >= 0.99 * own[0] if own[0] else 0 < 0.9 * own[1] <= inner[1]


# --- Triton -----------------------------------------------------------------------------------------------------------


def _triton(signature: Signature, name: str) -> Graph | None:
    named = [(f"buffer_{at}", *each) for at, each in enumerate(zip(signature.dims, signature.types, strict=True))]
    values = [value_of(shape, (), FORMATS[type_], name, {}) for name, shape, type_ in named if type_ in FORMATS]
    buffers = [value for value in values if 0 not in value.shape]
    if not buffers:
        return None
    *inputs, out = buffers
    b = Builder(name, out.dtype)
    names = [b.input(value.name, value.shape, value.dtype) for value in inputs]
    if not names:
        return b.graph([b.op("fill", name=name, shape=out.shape)])
    options: dict[str, Any] = {"flops": 0} if _spreads(inputs, out) else {"shape": out.shape}
    return b.graph([b.op("elementwise" if "flops" in options else "rearrange", *names, name=name, **options)])


def _spreads(inputs: Sequence[Value], out: Value) -> bool:
    """Tell whether the inputs broadcast to the result, as in a kernel without reductions."""
    try:
        return broadcast([value.shape for value in inputs]) == out.shape
    except ShapeError:
        return False
