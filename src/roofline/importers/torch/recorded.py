"""One recorded call of an operator to a graph with its sizes, by the rules that captured programs use."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from roofline.build import Builder
from roofline.errors import ShapeError
from roofline.graph import Graph
from roofline.importers.torch.lower import Lowering, Rule
from roofline.importers.torch.profiled import ALIASES, Alias, extra, settled
from roofline.importers.torch.program import Call, Program, Value, Write
from roofline.importers.torch.results import BY_RULE, results
from roofline.importers.torch.rules import RULES, pointwise, views
from roofline.importers.torch.schemas import FORMATS, Arguments, arguments
from roofline.ops import broadcast
from roofline.sizes import prod
from roofline.traces.events import Signature

#: Operators that look at memory or take some, and run no kernel.
_FREE = frozenset({*views.RULES, *pointwise._ROOM, "resize", "detach", "alias", "lift_fresh", "set", "resolve_conj",
                   "resolve_neg", "squeeze_copy", "as_strided", "numpy_T", "view_as_real_copy"})  # fmt: skip

#: Operators that PyTorch runs as one kernel where rules make several nodes.
_ONE_KERNEL = frozenset({"addmm", "baddbmm", "addbmm", "nll_loss_forward", "nll_loss2d_forward"})

#: Operators on lists of tensors, which have no result but what they write in place.
_LISTED = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")

#: Operators that take a number in place of a second tensor: one without axes is a number to the kernel.
_NUMBERS = frozenset(pointwise._WITH_NUMBER) | frozenset(pointwise._FLOPS) | {"rsub", "true_divide"}

#: Operators whose arguments broadcast to the result.
_BROADCAST = _NUMBERS | pointwise.RULES.keys() | {"copy"}


def recorded(op: str, signature: Signature, lists: str = "fp32") -> Graph | None:
    """The graph of one recorded call of a PyTorch operator; PyTorch is not needed.

    Args:
        op: Such as ``aten::addmm``.
        signature: Its recorded arguments.
        lists: Number format of tensors in lists, which profilers do not record.

    Returns:
        One operator with its sizes; a graph without kernels for a view; ``None`` where there is no rule, or the
        shapes that it needs were not recorded or contradict each other.

    Example:
        >>> from roofline.count import count
        >>> call = Signature(dims=((8, 2048, 64), (8, 64, 2048)), types=("c10::BFloat16", "c10::BFloat16"))
        >>> totals = count(recorded("aten::bmm", call))
        >>> totals.flops == 2 * 8 * 2048 * 64 * 2048, totals.bytes == 2 * 8 * (2 * 2048 * 64 + 2048 * 2048)
        (True, True)
    """
    # A record may be cut, of another version or wrong in any way: whatever goes wrong means that it tells nothing.
    try:
        return _cached(op, signature, lists)
    except Exception:
        return None


def triton(signature: Signature, name: str) -> Graph | None:
    """A kernel that Triton generated: its buffers are moved once each, and its arithmetic is not known.

    Which buffers are read and which written is not recorded; the last one is taken for the result.

    Args:
        signature: Recorded buffers; what is no tensor is left out.
        name: Of the kernel.

    Example:
        >>> from roofline.count import count
        >>> call = Signature(dims=((1024,), (1024,), ()), types=("float", "float", "Scalar"))
        >>> count(triton(call, "triton_poi_fused_cos_0")).bytes
        8192
    """
    try:
        return _triton(signature, name)
    except Exception:  # as above
        return None


@lru_cache(maxsize=16384)
def _cached(op: str, signature: Signature, lists: str) -> Graph | None:
    try:
        return _recorded(op, signature, lists)
    except Exception:  # kept, so that it is not tried again
        return None


def _recorded(op: str, signature: Signature, lists: str) -> Graph | None:
    name = op.partition("::")[2]
    bare = name if name in RULES or name in ALIASES else name.removesuffix("_")
    if bare in _FREE:
        return Graph(op, {}, ())
    alias = ALIASES.get(bare, Alias(bare))
    rule = extra(bare) or RULES.get(alias.rule)
    given = arguments(op, signature, lists) if rule is not None else None
    if rule is None or given is None:
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    program = _program(op, alias.rule, Arguments(settled(alias, given.named), given.strides), alias.turned, in_place)
    return _finished(_Recorded(program, {**RULES, alias.rule: rule}, "error").graph(), alias.rule)


class _Recorded(Lowering):
    """A program whose results have the shapes that the rule gives them, where nothing else tells."""

    def _settled(self, value: Value, name: str) -> str:
        return name if value.shape == BY_RULE else super()._settled(value, name)


def _program(op: str, rule: str, given: Arguments, turned: tuple[str, ...], in_place: bool) -> Program:
    """The call, and before it the views that bring its arguments into the order that rules know."""
    forms = [] if rule.startswith(_LISTED) and rule not in RULES else results(rule, given.named)
    outs = tuple(Value(1000 + at, "", shape, dtype, "activation") for at, (shape, dtype) in enumerate(forms))
    args = {key: _once(rule, value, given.strides, outs) for key, value in given.named.items()}
    calls: list[Call] = []
    sources = []
    for key, value in args.items():
        sources += [_laid(each, given.strides) if key == "mat2" else each for each in _values(value)]
        if isinstance(value, Value) and key in turned:
            args[key] = _heads_first(value, args, calls)
        elif isinstance(value, Value) and value != sources[-1]:
            args[key] = _viewed("t", sources[-1], value.shape, {}, calls)
    target = args.get("self")
    writes = (Write(target, outs[0]),) if in_place and outs and isinstance(target, Value) else ()
    calls.append(Call(f"{op.partition('::')[0]}.{rule}.recorded", args, outs, "", writes))
    return Program(op, "recorded", tuple(dict.fromkeys(sources)), tuple(calls), outs)


def _values(thing: Any) -> tuple[Value, ...]:
    each = thing if isinstance(thing, tuple) else (thing,)
    return tuple(value for value in each if isinstance(value, Value))


def _once(rule: str, value: Any, strides: dict[int, tuple[int, ...]], outs: tuple[Value, ...]) -> Any:
    """Without what is not read: a number held in a tensor, and the copies along an axis that has no stride."""
    if not isinstance(value, Value) or rule not in _BROADCAST or not outs:
        return value
    if not value.shape and rule in _NUMBERS and outs[0].shape and value.name != "self":
        return 1.0
    shape = tuple(1 if step == 0 else size for size, step in zip(value.shape, strides[value.number], strict=False))
    lone = rule not in ("copy", *_NUMBERS) or value.name == "self"  # it gives the result its shape
    return value if lone or len(shape) != len(value.shape) else replace(value, shape=shape)


def _laid(value: Value, strides: dict[int, tuple[int, ...]]) -> Value:
    """A matrix as it lies in memory: one that is stored by column has its axes changed, as a linear layer's weight."""
    by_column = len(value.shape) == 2 and strides[value.number][:1] == (1,) and strides[value.number] != (1, 1)
    return replace(value, shape=value.shape[::-1], number=3000 + value.number) if by_column else value


def _heads_first(value: Value, args: dict[str, Any], calls: list[Call]) -> Value:
    """``(batch, length, heads, width)`` with the heads first.

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


def _viewed(op: str, value: Value, shape: tuple[Any, ...], options: dict[str, Any], calls: list[Call]) -> Value:
    found = replace(value, number=2000 + len(calls), shape=shape, kind="activation")
    calls.append(Call(f"aten.{op}.recorded", {"self": value, **options}, (found,), ""))
    return found


def _finished(graph: Graph, rule: str) -> Graph:
    """What nobody reads any more leaves the call; several nodes of one kernel get its label."""
    nodes = graph.nodes
    if rule in _ONE_KERNEL:
        nodes = tuple(replace(node, kernel=rule) for node in nodes)
    read = {name for node in nodes for name in node.inputs}
    written = [name for node in nodes for name in node.outputs if name not in read]
    return replace(graph, nodes=nodes, outputs=tuple(dict.fromkeys([*graph.outputs, *written])))


def _triton(signature: Signature, name: str) -> Graph | None:
    buffers = [(shape, FORMATS[type_]) for shape, type_ in zip(signature.dims, signature.types, strict=True)
               if type_ in FORMATS and prod(shape)]  # fmt: skip
    if not buffers:
        return None
    b = Builder(name, buffers[-1][1])
    *inputs, (shape, _) = buffers
    names = [b.input(f"buffer_{at}", shape, dtype) for at, (shape, dtype) in enumerate(inputs)]
    if not names:
        return b.graph([b.op("fill", name=name, shape=shape)])
    try:
        spread = broadcast([each for each, _ in inputs]) == shape
    except ShapeError:
        spread = False
    out = b.op("elementwise", *names, name=name, flops=0) if spread else b.op("rearrange", *names, name=name, shape=shape)
    return b.graph([out])
