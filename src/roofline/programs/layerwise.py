"""Programs that a model file lists layer by layer.

Layers chain: each takes the result of the one before it. ``from`` or ``inputs`` name earlier layers or inputs
instead; ``input`` is what the block around a layer was given. A layer with layers inside is a block, repeated
``repeat`` times. ``op`` is one of :data:`LAYERS`, which make their own weights, or any operator of the registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ModelDataError, RooflineError, ShapeError, UnknownDType, UnknownOp, did_you_mean
from roofline.ir.expressions import parse
from roofline.ir.sizes import Size, prod
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Run
from roofline.programs.layers.convolution import batchnorm, channel_norm, conv
from roofline.programs.layers.feedforward import MLP, Experts
from roofline.programs.layers.primitives import embed, linear, norm

#: Nodes that a model may have at most.
MAX_NODES = 200_000
#: Blocks inside blocks at most.
MAX_DEPTH = 16

_OWN_KEYS = ("op", "name", "repeat", "from", "inputs", "weights", "layer")
#: Operators that join the layer before them with ``from``.
_JOINS = ("add", "sub", "mul", "div", "maximum", "minimum", "cat", "bmm")


@dataclass
class _Scope:
    """Names visible inside a block: its own layers, then those around it."""

    names: dict[str, str]
    outer: _Scope | None = None
    given: set[str] = field(default_factory=set)
    labels: dict[str, int] = field(default_factory=dict)

    def label(self, name: str) -> str:
        """A label of its own for each layer of a block: ``linear``, ``linear_2``..."""
        self.labels[name] = self.labels.get(name, 0) + 1
        return name if self.labels[name] == 1 else f"{name}_{self.labels[name]}"

    def find(self, name: str, where: str) -> str:
        scope: _Scope | None = self
        known: list[str] = []
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            known += scope.names
            scope = scope.outer
        raise ModelDataError(f"{where}: no earlier layer or input is called {name!r}{did_you_mean(name, known)}")


@dataclass(frozen=True)
class _Program:
    b: Builder
    sizes: Mapping[str, Size]


def build_layers(
    b: Builder,
    inputs: Mapping[str, Any],
    layers: Sequence[Mapping[str, Any]],
    outputs: Sequence[str],
    sizes: Mapping[str, Size],
    where: str,
) -> list[str]:
    """Add a file's layers to a builder.

    Args:
        b: The builder.
        inputs: Shapes by name: a list of sizes, or a table of ``shape`` and ``dtype``.
        layers: The ``[[layer]]`` tables.
        outputs: Names of what is kept; the last layer when empty.
        sizes: The file's sizes.
        where: The file, for errors.

    Returns:
        The tensors that are kept.

    Raises:
        ModelDataError: Names the file and the layer.
        ShapeError: Likewise, for shapes that do not fit.
    """
    if not inputs:
        raise ModelDataError(f"{where}: [inputs] is missing; wanted a shape for each, such as x = ['B', 'hidden']")
    program = _Program(b, sizes)
    total = _count(layers, program, where, 0)
    if total > MAX_NODES:
        raise ModelDataError(f"{where}: about {total} nodes after repeats; allowed: at most {MAX_NODES}")
    names = {name: _input(program, name, shape, f"{where}: inputs.{name}") for name, shape in inputs.items()}
    scope = _Scope(names)
    last = _block(program, layers, scope, next(iter(names.values())), where)
    return [scope.find(name, f"{where}: outputs") for name in outputs] or [last]


def _input(program: _Program, name: str, value: Any, where: str) -> str:
    table = value if isinstance(value, dict) else {"shape": value}
    if not isinstance(table.get("shape"), list) or not table.keys() <= {"shape", "dtype"}:
        raise ModelDataError(f"{where}: wanted a list of sizes, or shape = [...] and dtype = '...'; given {value!r}")
    shape = tuple(parse(size, program.sizes, where) for size in table["shape"])
    try:
        dtype = number_format(table["dtype"]).name if "dtype" in table else None
        return program.b.input(name, shape, dtype)
    except (ShapeError, UnknownDType) as error:
        raise ModelDataError(f"{where}: {error}") from None


def _count(layers: Sequence[Mapping[str, Any]], program: _Program, where: str, depth: int) -> int:
    """Count the nodes after repeats, roughly and cheaply, before anything is built."""
    if depth > MAX_DEPTH:
        raise ModelDataError(f"{where}: blocks nested more than {MAX_DEPTH} deep")
    total = 0
    for number, layer in enumerate(layers, 1):
        place = _place(where, layer, number)
        inner = layer.get("layer")
        weight = (
            _count(_tables(inner, place), program, place, depth + 1) if inner else _NODES.get(str(layer.get("op")), 1)
        )
        total += _repeat(layer, program, place) * weight
    return total


def _tables(inner: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(inner, list) or not all(isinstance(item, dict) for item in inner):
        raise ModelDataError(f"{where}: layer: wanted tables [[layer.layer]], given {str(inner)[:60]!r}")
    return inner


def _repeat(layer: Mapping[str, Any], program: _Program, where: str) -> int:
    repeat = parse(layer.get("repeat", 1), program.sizes, f"{where}: repeat")
    if not isinstance(repeat, int) or repeat < 1:
        raise ModelDataError(f"{where}: repeat: wanted a whole number from 1 up, given {layer['repeat']!r}")
    return repeat


def _place(where: str, layer: Mapping[str, Any], number: int) -> str:
    return f"{where}: layer {number} ({layer.get('name') or layer.get('op') or 'block'})"


def _block(program: _Program, layers: Sequence[Mapping[str, Any]], scope: _Scope, x: str, where: str) -> str:
    scope.names.setdefault("input", x)
    for number, layer in enumerate(layers, 1):
        place = _place(where, layer, number)
        x = _repeated(program, layer, scope, x, place)
        _remember(scope, layer, x, place)
    return x


def _remember(scope: _Scope, layer: Mapping[str, Any], x: str, where: str) -> None:
    name = layer.get("name")
    if name is not None:
        if not isinstance(name, str) or not name:
            raise ModelDataError(f"{where}: name: wanted text, given {name!r}")
        if name in scope.given or name == "input":
            raise ModelDataError(f"{where}: the name {name!r} is taken in this block")
        scope.given.add(name)
    scope.names[str(name or layer.get("op") or "block")] = x


def _repeated(program: _Program, layer: Mapping[str, Any], scope: _Scope, x: str, where: str) -> str:
    inner = layer.get("layer")
    if not inner and "op" not in layer:
        raise ModelDataError(f"{where}: wanted op = '...' or [[layer.layer]] tables inside, given {sorted(layer)}")
    if inner and (extra := sorted(layer.keys() - {"name", "repeat", "from", "layer"})):
        raise ModelDataError(f"{where}: a block takes name, repeat, from and layer, not {', '.join(extra)}")
    repeat = _repeat(layer, program, where)
    name = scope.label(str(layer.get("name") or layer.get("op") or "block"))
    if inner and "from" in layer:
        x = scope.find(str(layer["from"]), where)
    for index in range(repeat):
        label = name if repeat == 1 else f"{name}.{index}"
        if inner:
            with program.b.scope(label):
                x = _block(program, inner, _Scope({}, scope), x, where)
        else:
            x = _single(program, layer, label, scope, x, where)
    return x


def _single(program: _Program, layer: Mapping[str, Any], label: str, scope: _Scope, x: str, where: str) -> str:
    op = layer["op"]
    inputs = _inputs(layer, scope, x, where)
    keys = {key: value for key, value in layer.items() if key not in _OWN_KEYS}
    try:
        if op in LAYERS and "weights" not in layer:
            _check_arity(LAYERS[op], op, inputs, where)
            return LAYERS[op](program.b, label, *inputs, **_arguments(LAYERS[op], keys, program, where))
        return _registered(program, layer, label, inputs, keys, where)
    except RooflineError as error:
        text = str(error)
        raise type(error)(text if text.startswith(where) else f"{where}: {text}") from None
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise ModelDataError(f"{where}: {op} cannot take these inputs or options ({error})") from None


def _check_arity(function: Callable[..., str], op: str, inputs: list[str], where: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    arity = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) - 2  # the builder and the name
    if len(inputs) != arity:
        raise ModelDataError(f"{where}: {op} takes {arity} input, given {len(inputs)}")


def _inputs(layer: Mapping[str, Any], scope: _Scope, x: str, where: str) -> list[str]:
    if "inputs" in layer:
        names = layer["inputs"]
        if not isinstance(names, list) or not names or "from" in layer:
            raise ModelDataError(f"{where}: inputs: wanted a list of names, and no 'from' beside it")
        return [scope.find(str(name), where) for name in names]
    if "from" not in layer:
        return [x]
    names = layer["from"] if isinstance(layer["from"], list) else [layer["from"]]
    tensors = [scope.find(str(name), where) for name in names]
    return [x, *tensors] if layer["op"] in _JOINS else tensors


# --- keys of a layer to arguments -----------------------------------------------------------------------------------


def _arguments(function: Callable[..., str], keys: Mapping[str, Any], program: _Program, where: str) -> dict[str, Any]:
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    _refuse_unknown(keys, parameters, where)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in keys:
            raise ModelDataError(f"{where}: {name} is missing")
    return {
        key: _READERS[parameters[key].annotation](value, program, f"{where}: {key}") for key, value in keys.items()
    }  # fmt: skip


def _refuse_unknown(keys: Mapping[str, Any], allowed: Mapping[str, Any] | frozenset[str], where: str) -> None:
    for key in keys:
        if key not in allowed:
            names = [*sorted(allowed), *_OWN_KEYS]
            raise ModelDataError(f"{where}: unknown key {key!r}; allowed: {', '.join(names)}{did_you_mean(key, names)}")


def _number(value: Any, program: _Program, where: str) -> int:
    size = parse(value, program.sizes, where)
    if not isinstance(size, int) or size < 0:
        raise ModelDataError(f"{where}: wanted a whole number, given {value!r}")
    return size


def _pair(value: Any, program: _Program, where: str) -> Any:
    if not isinstance(value, list):
        return _number(value, program, where)
    if len(value) != 2:
        raise ModelDataError(f"{where}: wanted one number or two, given {value!r}")
    return [_number(item, program, where) for item in value]


def _only(kind: type, name: str) -> Callable[[Any, _Program, str], Any]:
    def read(value: Any, program: _Program, where: str) -> Any:
        if not isinstance(value, kind):
            raise ModelDataError(f"{where}: wanted {name}, given {value!r}")
        return value

    return read


#: How a key is read, by the annotation of the argument that it is for.
_READERS: dict[str, Callable[[Any, _Program, str], Any]] = {
    "Size": lambda value, program, where: parse(value, program.sizes, where), "int": _number, "Pair": _pair,
    "bool": _only(bool, "true or false"), "str": _only(str, "text"),
}  # fmt: skip


def _registered(
    program: _Program, layer: Mapping[str, Any], label: str, inputs: list[str], keys: Mapping[str, Any], where: str
) -> str:
    """Add any operator of the registry, with the weights that the file spells out."""
    op = layer["op"]
    if op not in OPS:
        names = [*LAYERS, *OPS]
        raise UnknownOp(f"{where}: unknown operator {str(op)!r}{did_you_mean(str(op), names)}")
    _refuse_unknown(keys, OPS[op].parameters, where)
    attrs = {key: _attribute(value, program, f"{where}: {key}") for key, value in keys.items()}
    shapes = layer.get("weights", [])
    if not isinstance(shapes, list) or not all(isinstance(shape, list) for shape in shapes):
        raise ModelDataError(f"{where}: weights: wanted a list of shapes such as [['4 * hidden', 'hidden']]")
    weights = [
        program.b.weight(f"{label}.weight", tuple(parse(s, program.sizes, f"{where}: weights") for s in shape))
        for shape in shapes
    ]
    return program.b.op(op, *inputs, *weights, name=label, **attrs)


def _attribute(value: Any, program: _Program, where: str) -> Any:
    if isinstance(value, list):
        return [_attribute(item, program, where) for item in value]
    return parse(value, program.sizes, where) if isinstance(value, str) else value


# --- layers that make their own weights -----------------------------------------------------------------------------

#: One number or two, for height and width.
Pair = Any


def _choice(value: str, allowed: Mapping[str, Any], key: str) -> Any:
    if value not in allowed:
        near = did_you_mean(value, allowed)
        raise ModelDataError(f"{key}: unknown {value!r}; allowed: {', '.join(allowed)}{near}")
    return allowed[value]


def _linear(b: Builder, name: str, x: str, *, out: Size, bias: bool = False) -> str:
    return linear(b, x, out, name, bias)


def _conv2d(
    b: Builder, name: str, x: str, *, out: int, kernel: Pair, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1, bias: bool = False,
) -> str:  # fmt: skip
    return conv(b, x, out, kernel, name, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias)


def _attention(
    b: Builder, name: str, x: str, *, heads: int, kv_heads: int = 0, head_dim: int = 0, causal: bool = False,
    window: int = 0, bias: bool = False, cache: Size = 0,
) -> str:  # fmt: skip
    hidden: Any = b.shape(x)[-1]
    if heads < 1 or (not head_dim and hidden % heads):
        raise ShapeError(f"attention: head_dim is absent, and {hidden} / heads = {heads} is not whole")
    if heads % (kv_heads or heads):
        raise ShapeError(f"attention: heads = {heads} is no multiple of kv_heads = {kv_heads}")
    layer = _CachedAttention(
        heads, kv_heads or heads, head_dim or hidden // heads, window, causal, rotates=False, qkv_bias=bias,
        out_bias=bias, cache=cache,
    )  # fmt: skip
    with b.scope(name):
        return layer(Run(b, width=hidden), x)


@dataclass(frozen=True)
class _CachedAttention(Attention):
    """Attention to a cache of some length, which the new keys and values are written to, where there is one."""

    cache: Size = 0

    def keys_and_values(self, run: Run, k: str, v: str) -> tuple[str, str]:
        k, v = super().keys_and_values(run, k, v)
        return (self.write(run, k, "k_cache"), self.write(run, v, "v_cache")) if self.cache else (k, v)

    def write(self, run: Run, new: str, name: str) -> str:
        batch, heads, _, width = run.b.shape(new)
        return run.b.op(
            "cache_update", run.b.cache(name, (batch, heads, self.cache, width)), new, name=f"{name}_update"
        )


def _mlp(
    b: Builder, name: str, x: str, *, hidden: Size, activation: str = "gelu", gated: bool = False, bias: bool = False
) -> str:  # fmt: skip
    with b.scope(name):
        return MLP(hidden, activation, gated, bias=bias)(Run(b), x)


def _moe(b: Builder, name: str, x: str, *, experts: int, top_k: int, hidden: int, activation: str = "silu") -> str:
    if not 1 <= top_k <= experts:
        raise ShapeError(f"moe: top_k = {top_k} must be between 1 and experts = {experts}")
    with b.scope(name):
        return Experts(experts, top_k, hidden, activation)(Run(b), x)


_NORMS = {"layernorm": norm, "rmsnorm": norm, "groupnorm": channel_norm, "layernorm2d": channel_norm,
          "batchnorm": batchnorm, "batchnorm2d": batchnorm}  # fmt: skip


def _norm(b: Builder, name: str, x: str, *, kind: str = "layernorm", bias: bool = True) -> str:
    add = _choice(kind, _NORMS, "kind")
    made: str = batchnorm(b, x, name) if add is batchnorm else add(b, x, kind, name, bias)
    return made


def _norm_layer(kind: str) -> Callable[..., str]:
    def layer(b: Builder, name: str, x: str, *, bias: bool = True) -> str:
        return _norm(b, name, x, kind=kind, bias=bias)

    return layer


def _embedding(b: Builder, name: str, ids: str, *, vocab: Size, dim: Size) -> str:
    return embed(b, b.weight(f"{name}.weight", (vocab, dim)), ids, name)


_POOLS = {"max": "maxpool2d", "avg": "avgpool2d", "global": "global_avgpool"}


def _pool(
    b: Builder, name: str, x: str, *, kind: str = "max", kernel: Pair = 0, stride: Pair = 0, padding: Pair = 0
) -> str:  # fmt: skip
    op = _choice(kind, _POOLS, "kind")
    if kind == "global":
        return b.op(op, x, name=name)
    if not kernel:
        raise ModelDataError("kernel is missing")
    return b.op(op, x, name=name, r=kernel, stride=stride or kernel, padding=padding)


def _flatten(b: Builder, name: str, x: str) -> str:
    shape = b.shape(x)
    return b.op("view", x, name=name, shape=(shape[0], prod(shape[1:])))


#: Layers that make their own weights; their keyword arguments are the keys that a file may give.
LAYERS: dict[str, Callable[..., str]] = {
    "linear": _linear, "conv2d": _conv2d, "attention": _attention, "mlp": _mlp, "moe": _moe, "norm": _norm,
    "embedding": _embedding, "pool": _pool, "flatten": _flatten,
    **{kind: _norm_layer(kind) for kind in _NORMS},
}  # fmt: skip

#: Nodes that they make, for the bound on a file; others make one.
_NODES = {"attention": 14, "mlp": 6, "moe": 20}
