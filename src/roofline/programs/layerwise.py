"""Programs that a model file lists layer by layer.

Layers chain: each takes the result of the one before it. ``from`` or ``inputs`` name earlier layers or inputs
instead; ``input`` is what the block around a layer was given. A layer with layers inside is a block, repeated
``repeat`` times. ``op`` is one of :data:`LAYERS`, which make their own weights, or any operator of the registry.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ModelDataError, RooflineError, ShapeError, UnknownDType, UnknownOp, did_you_mean
from roofline.ir.expressions import parse
from roofline.ir.signature import Shape
from roofline.ir.sizes import Dim, Size, prod
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS
from roofline.passes.parallel.axes import Axes
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Run
from roofline.programs.layers.convolution import batchnorm, channel_norm, conv
from roofline.programs.layers.feedforward import MLP, Experts
from roofline.programs.layers.primitives import embed, linear, norm

#: Nodes that a model may have at most.
MAX_NODES = 200_000
#: Blocks inside blocks at most.
MAX_DEPTH = 16

#: Axes that a tensor has at most.
_MAX_AXES = 16
#: Sizes in options of operators are no larger.
MAX_COUNT = 10**12
#: Options of operators that are no size: truth values, text, axes, lists of sizes, and sizes or lists of them.
_SWITCHES, _TEXTS, _AXES = frozenset({"causal", "keepdim", "recurrent"}), frozenset({"distribution"}), ("axis", "axes")
_LISTS, _PAIRS = ("shape", "image"), ("kernel", "stride", "padding", "dilation", "output_padding", "scale", "r")
#: Those that may be 0.
_FROM_ZERO = ("padding", "output_padding", "window", "flops", "operations", "products", "picks")
#: Operators of which a program must say more than a file can.
_IMPORTED = ("unknown",)

_OWN_KEYS = ("op", "name", "repeat", "from", "inputs", "weights", "layer")
#: Operators that join the layer before them with ``from``.
_JOINS = ("add", "sub", "mul", "div", "maximum", "minimum", "cat", "bmm")
_Layer = Mapping[str, Any]


@dataclass(frozen=True)
class _Place:
    """A place in a file: what it is built into, the file's sizes, and what errors call it."""

    b: Builder
    sizes: Mapping[str, Size]
    where: str

    def at(self, inside: str) -> _Place:
        """Return a place inside this one."""
        return replace(self, where=f"{self.where}: {inside}")

    def layers(self, layers: Sequence[_Layer]) -> Iterator[tuple[_Place, _Layer]]:
        """Return each layer with its place."""
        for number, layer in enumerate(layers, 1):
            yield self.at(f"layer {number} ({layer.get('name') or layer.get('op') or 'block'})"), layer

    def fail(self, why: str) -> NoReturn:
        raise ModelDataError(f"{self.where}: {why}")

    def size(self, value: Any) -> Size:
        return parse(value, self.sizes, self.where)

    def number(self, value: Any) -> int:
        size = self.size(value)
        if not isinstance(size, int) or size < 0:
            self.fail(f"expected a whole number, given {value!r}")
        return size

    def pair(self, value: Any) -> Any:
        """Read one number, or two for height and width."""
        if not isinstance(value, list):
            return self.number(value)
        if len(value) != 2:
            self.fail(f"expected one number or two, given {value!r}")
        return [self.number(item) for item in value]

    def only(self, value: Any, kind: type, name: str) -> Any:
        if not isinstance(value, kind):
            self.fail(f"expected {name}, given {value!r}")
        return value

    def option(self, key: str, value: Any) -> Any:
        """Read an option of an operator of the registry: a size, unless its name says otherwise."""
        if key in _SWITCHES:
            return self.only(value, bool, "true or false")
        if key in _TEXTS:
            return self.only(value, str, "text")
        if key in _AXES:
            return self.axes(value)
        if isinstance(value, list) and key in (*_LISTS, *_PAIRS):
            return [self.count(item, key) for item in value[:_MAX_AXES]]
        if isinstance(value, list) or key in _LISTS:
            self.fail(f"expected {'a list of sizes' if key in _LISTS else 'one size'}, given {str(value)[:60]!r}")
        return self.count(value, key)

    def count(self, value: Any, key: str) -> Size:
        """Read a size from 1, or from 0 where none is meant."""
        size, least = self.size(value), int(key not in _FROM_ZERO)
        if isinstance(size, int) and not least <= size <= MAX_COUNT:
            self.fail(f"expected a whole number from {least} to 10**12, given {str(value)[:60]!r}")
        return size

    def axes(self, value: Any) -> Any:
        """Read an axis or several, counted from the front or from the back."""
        listed = value if isinstance(value, list) else [value]
        if not all(type(axis) is int and abs(axis) <= _MAX_AXES for axis in listed) or len(listed) > _MAX_AXES:
            self.fail(f"expected an axis or a list of axes, given {str(value)[:60]!r}")
        return value


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

    def find(self, name: Any, place: _Place) -> str:
        scope: _Scope | None = self
        known: list[str] = []
        while scope is not None:
            if str(name) in scope.names:
                return scope.names[str(name)]
            known += scope.names
            scope = scope.outer
        place.fail(f"no earlier layer or input is called {str(name)!r}{did_you_mean(str(name), known)}")

    def remember(self, layer: _Layer, x: str, place: _Place) -> None:
        """Give a layer's result its name, which no other layer of the block has."""
        name = layer.get("name")
        if name is not None:
            if not isinstance(name, str) or not name:
                place.fail(f"name: expected text, given {name!r}")
            if name in self.given or name == "input":
                place.fail(f"the name {name!r} is taken in this block")
            self.given.add(name)
        self.names[str(name or layer.get("op") or "block")] = x


def build_layers(
    b: Builder,
    inputs: Mapping[str, Any],
    layers: Sequence[_Layer],
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
    place = _Place(b, sizes, where)
    if not inputs:
        place.fail("[inputs] is missing; expected a shape for each, such as x = ['B', 'hidden']")
    total = _count(layers, place, 0)
    if total > MAX_NODES:
        place.fail(f"about {total} nodes after repeats; allowed: at most {MAX_NODES}")
    scope = _Scope({name: _input(name, shape, place.at(f"inputs.{name}")) for name, shape in inputs.items()})
    last = _block(layers, scope, next(iter(scope.names.values())), place)
    return [scope.find(name, place.at("outputs")) for name in outputs] or [last]


def _input(name: str, value: Any, place: _Place) -> str:
    table = value if isinstance(value, dict) else {"shape": value}
    if not isinstance(table.get("shape"), list) or not table.keys() <= {"shape", "dtype"}:
        place.fail(f"expected a list of sizes, or shape = [...] and dtype = '...'; given {value!r}")
    shape = tuple(place.size(size) for size in table["shape"])
    try:
        dtype = number_format(table["dtype"]).name if "dtype" in table else None
        return place.b.input(name, shape, dtype)
    except (ShapeError, UnknownDType) as error:
        raise ModelDataError(f"{place.where}: {error}") from None


def _count(layers: Sequence[_Layer], place: _Place, depth: int) -> int:
    """Count the nodes after repeats, roughly and cheaply, before anything is built."""
    if depth > MAX_DEPTH:
        place.fail(f"blocks nested more than {MAX_DEPTH} deep")
    total = 0
    for here, layer in place.layers(layers):
        weight, inner = _NODES.get(str(layer.get("op")), 1), layer.get("layer")
        if inner:
            if not isinstance(inner, list) or not all(isinstance(item, dict) for item in inner):
                here.fail(f"layer: expected tables [[layer.layer]], given {str(inner)[:60]!r}")
            weight = _count(inner, here, depth + 1)
        total += _repeat(layer, here) * weight
    return total


def _repeat(layer: _Layer, place: _Place) -> int:
    repeat = place.at("repeat").size(layer.get("repeat", 1))
    if not isinstance(repeat, int) or repeat < 1:
        place.fail(f"repeat: expected a whole number from 1 up, given {layer['repeat']!r}")
    return repeat


def _block(layers: Sequence[_Layer], scope: _Scope, x: str, place: _Place) -> str:
    scope.names.setdefault("input", x)
    for here, layer in place.layers(layers):
        x = _repeated(layer, scope, x, here)
        scope.remember(layer, x, here)
    return x


def _repeated(layer: _Layer, scope: _Scope, x: str, place: _Place) -> str:
    inner = layer.get("layer")
    if not inner and "op" not in layer:
        place.fail(f"expected op = '...' or [[layer.layer]] tables inside, given {sorted(layer)}")
    if inner and (extra := sorted(layer.keys() - {"name", "repeat", "from", "layer"})):
        place.fail(f"a block takes name, repeat, from and layer, not {', '.join(extra)}")
    repeat = _repeat(layer, place)
    name = scope.label(str(layer.get("name") or layer.get("op") or "block"))
    if inner and "from" in layer:
        x = scope.find(layer["from"], place)
    for index in range(repeat):
        label = name if repeat == 1 else f"{name}.{index}"
        if inner:
            with place.b.scope(label):
                x = _block(inner, _Scope({}, scope), x, place)
        else:
            x = _single(layer, label, _inputs(layer, scope, x, place), place)
    return x


def _inputs(layer: _Layer, scope: _Scope, x: str, place: _Place) -> list[str]:
    if "inputs" in layer:
        names = layer["inputs"]
        if not isinstance(names, list) or not names or "from" in layer:
            place.fail("inputs: expected a list of names, and no 'from' beside it")
        return [scope.find(name, place) for name in names]
    if "from" not in layer:
        return [x]
    names = layer["from"] if isinstance(layer["from"], list) else [layer["from"]]
    tensors = [scope.find(name, place) for name in names]
    return [x, *tensors] if layer["op"] in _JOINS else tensors


def _single(layer: _Layer, label: str, inputs: list[str], place: _Place) -> str:
    op = layer["op"]
    keys = {key: value for key, value in layer.items() if key not in _OWN_KEYS}
    try:
        if op in LAYERS and "weights" not in layer:
            return LAYERS[op](place.b, label, *inputs, **_arguments(op, len(inputs), keys, place))
        return _registered(layer, label, inputs, keys, place)
    except RooflineError as error:
        text = str(error)
        raise type(error)(text if text.startswith(place.where) else f"{place.where}: {text}") from None
    except IndexError:
        place.fail(f"{op} takes more inputs than the {len(inputs)} given")
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
        place.fail(f"{op} cannot take these inputs or options ({error})")


# --- keys of a layer to arguments -----------------------------------------------------------------------------------

#: How a key is read, by the annotation of the argument that it is for.
_READERS: dict[str, Callable[[_Place, Any], Any]] = {
    "Size": _Place.size, "int": _Place.number, "Pair": _Place.pair,
    "bool": lambda place, value: place.only(value, bool, "true or false"),
    "str": lambda place, value: place.only(value, str, "text"),
}  # fmt: skip


def _arguments(op: str, number: int, keys: Mapping[str, Any], place: _Place) -> dict[str, Any]:
    signature = inspect.signature(LAYERS[op]).parameters
    parameters = {name: p for name, p in signature.items() if p.kind is p.KEYWORD_ONLY}
    arity = len(signature) - len(parameters) - 2  # the builder and the name
    if number != arity:
        place.fail(f"{op} takes {arity} input, given {number}")
    _refuse_unknown(keys, parameters, place)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in keys:
            place.fail(f"{name} is missing")
    return {key: _READERS[parameters[key].annotation](place.at(key), value) for key, value in keys.items()}


def _refuse_unknown(keys: Mapping[str, Any], allowed: Mapping[str, Any] | frozenset[str], place: _Place) -> None:
    for key in keys:
        if key not in allowed:
            names = [*sorted(allowed), *_OWN_KEYS]
            place.fail(f"unknown key {key!r}; allowed: {', '.join(names)}{did_you_mean(key, names)}")


def _registered(layer: _Layer, label: str, inputs: list[str], keys: Mapping[str, Any], place: _Place) -> str:
    """Add any operator of the registry, with the weights that the file spells out."""
    op, b = layer["op"], place.b
    if op not in OPS or op in _IMPORTED:
        raise UnknownOp(f"{place.where}: unknown operator {str(op)!r}{did_you_mean(str(op), [*LAYERS, *OPS])}")
    _refuse_unknown(keys, OPS[op].parameters, place)
    attrs = {key: place.at(key).option(key, value) for key, value in keys.items()}
    shapes = layer.get("weights", [])
    if not isinstance(shapes, list) or not all(isinstance(shape, list) for shape in shapes):
        place.fail("weights: expected a list of shapes such as [['4 * hidden', 'hidden']]")
    sizes = place.at("weights").size
    weights = [b.weight(f"{label}.weight", tuple(sizes(size) for size in shape)) for shape in shapes]
    made = b.op(op, *inputs, *weights, name=label, **attrs)
    options = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in attrs.items())
    if fault := _fault(op, b.shape(made), tuple(b.shape(name) for name in (*inputs, *weights)), options):
        place.fail(f"{op} {fault}")
    return made


@lru_cache(maxsize=1024)
def _fault(op: str, made: Shape, shapes: tuple[Shape, ...], options: tuple[tuple[str, Any], ...]) -> str:
    """Say what counting, timing or sharding would fall over later: sizes and work that are no numbers."""
    attrs, alone = dict(options), Builder(op, "fp32")
    alone.op(op, *(alone.input(f"x{at}", shape) for at, shape in enumerate(shapes)), **attrs)
    Axes(alone.graph())
    work = OPS[op].work(shapes, attrs)
    figures = [work.flops, work.vector, work.writes or 0, *work.reads.values()]
    if any(position >= len(shapes) for position in work.reads):
        return f"takes more inputs than the {len(shapes)} given"
    if not all(isinstance(figure, int | float | Fraction | Dim) and figure is not True for figure in (*made, *figures)):
        return f"cannot take these inputs or options: its sizes would be {str(list(made))[:60]}"
    known = [figure for figure in figures if isinstance(figure, int | float | Fraction)]
    if not all(0 <= figure < math.inf for figure in known) or any(isinstance(size, int) and size < 1 for size in made):
        return "cannot take these inputs or options: sizes below 1, or less than no work"
    return ""


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
        raise ShapeError(f"attention: heads = {heads} is not a multiple of kv_heads = {kv_heads}")
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
