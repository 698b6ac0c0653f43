"""Shapes and formats of what operators return, which profilers do not record, by their arguments: a form per kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from roofline.frontends.call import with_options
from roofline.frontends.torch.program import AtenCall, Value
from roofline.frontends.torch.schemas import SCALAR_TYPES
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Size
from roofline.ops.registry import broadcast

#: A result's shape and number format.
Result = tuple[tuple[Any, ...], str]

#: Shape of a result that the operator's rule works out by itself.
BY_RULE = (-1,)

#: Formats by what they promote to: a later one takes an earlier one in, but for fp16 and bf16.
_ORDER = ("bool", "int8", "int16", "int32", "int64", "fp8", "fp16", "bf16", "fp32", "fp64")
_FLOATS = _ORDER[5:]

#: Losses that become one number unless ``reduction`` says otherwise.
_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
           "kl_div")  # fmt: skip

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan",
                "isinf", "isfinite", "isin", "signbit", "isposinf", "isneginf")  # fmt: skip


#: How to work out the results of an operator: one, or several.
Form = Callable[[AtenCall], "Result | list[Result]"]


def axis(call: AtenCall, default: int) -> Any:
    """Return the axis ``dim`` of ``self`` counted from the front."""
    return call.get("dim", default) % len(call.tensor().shape)


def requested(call: AtenCall, default: str) -> str:
    """Return the format that was asked for."""
    return SCALAR_TYPES.get(call.get("dtype", call.get("out_dtype")), default)


def with_size(call: AtenCall, axis: int, size: Any) -> Result:
    """Return ``self`` with another size along an axis."""
    value = call.tensor()
    return tuple(size if at == axis else old for at, old in enumerate(value.shape)), value.dtype


def promoted(call: AtenCall) -> str:
    """Return the common format of the tensors; those without axes and numbers count where they are of a higher kind."""
    arrays = [value.dtype for value in call.tensors if value.shape]
    scalars = [value.dtype for value in call.tensors if not value.shape]
    best = _common(arrays or scalars)
    number = any(isinstance(call.get(key), float) for key in ("other", "value", "exponent"))
    for scalar in (*scalars, *(("fp32",) if number else ())):
        if _category(scalar) > _category(best):
            best = "fp32" if _category(scalar) > 1 else scalar
    return best


def _common(formats: Sequence[str]) -> str:
    if {"fp16", "bf16"} <= set(formats):
        formats = [*formats, "fp32"]
    return max(formats, key=_ORDER.index, default="fp32")


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 1 if dtype.startswith("int") else 2


# --- one function per form of result ----------------------------------------------------------------------------------


def like(key: str, *also: str) -> Form:
    """As an argument; further results have the same shape and formats of their own."""
    return lambda call: [(call.tensor(key).shape, dtype) for dtype in (call.tensor(key).dtype, *also)]


def shaped(key: str, like: str = "self") -> Form:
    """The shape of one argument in the format of another."""
    return lambda call: (call.tensor(key).shape, call.tensor(like).dtype)


def sized(*keys: str) -> Form:
    """A shape that is an argument itself."""
    return lambda call: (call.sizes(*keys), call.first.dtype)


def pointwise(call: AtenCall) -> Result:
    shape = broadcast([value.shape for value in call.tensors])
    dtype = "bool" if call.name in _COMPARISONS else promoted(call)
    if call.name in ("div", "true_divide", "sigmoid", "exp", "sqrt", "log", "tanh") and dtype not in _FLOATS:
        dtype = "fp32"
    is_sum = call.name in _LOSSES and call.get("reduction") in (1, 2)
    return () if is_sum else shape, dtype


def where(call: AtenCall) -> Result:
    """The condition has no say in the format."""
    values = replace(call, args={key: value for key, value in call.args.items() if key != "condition"})
    return broadcast([value.shape for value in call.tensors]), promoted(values)


def by_rule(call: AtenCall) -> list[Result]:
    """The rule works the shapes out, of three results at most."""
    return [(BY_RULE, "int32" if call.name == "_int_mm" else requested(call, call.first.dtype))] * 3


def filled(call: AtenCall) -> Result:
    like = call.args.get("self")
    if isinstance(like, Value) and not call.name.startswith("new_"):
        return like.shape, requested(call, like.dtype)
    return call.sizes("size"), requested(call, like.dtype if isinstance(like, Value) else "fp32")


def arange(call: AtenCall) -> Result:
    if call.name != "arange":
        return (call.get("steps"),), requested(call, "fp32")
    start, end, step = call.get("start", 0), call.get("end"), call.get("step", 1)
    whole = all(isinstance(value, int) for value in (start, end, step))
    return (max(-int(-(end - start) // step), 0),), requested(call, "int64" if whole else "fp32")


def cast(call: AtenCall) -> Result:
    value, other = call.tensor(), call.args.get("other")
    return value.shape, requested(call, other.dtype if isinstance(other, Value) else value.dtype)


@with_options
def reduced(call: AtenCall, how: str) -> list[Result]:
    """Formats: ``sum`` of whole numbers is int64, ``index`` int64, ``bool``, ``same``, ``pair`` is values and index."""
    value, dim = call.first, call.get("dim")
    shape = _without(value.shape, dim, bool(call.get("keepdim", False)))
    whole = value.dtype not in _FLOATS
    dtype = {"sum": "int64" if whole else value.dtype, "index": "int64", "bool": "bool"}.get(how, value.dtype)
    if how == "pair" and dim is not None:
        return [(shape, dtype), (shape, "int64")]
    return [(shape, requested(call, dtype))] * (2 if how == "two" else 1)


def _without(shape: tuple[Any, ...], dim: Any, keepdim: bool) -> tuple[Any, ...]:
    rank = max(len(shape), 1)
    axes = dim if isinstance(dim, tuple) else () if dim is None else (dim,)
    if any(not -rank <= axis < rank for axis in axes):
        raise ShapeError(f"an axis that {list(shape)} does not have")
    reduced = {axis % rank for axis in axes} or set(range(rank))
    return tuple(1 if at in reduced else size for at, size in enumerate(shape) if keepdim or at not in reduced)


def ordered(call: AtenCall) -> list[Result]:
    value = call.first
    return [(value.shape, "int64" if call.name == "argsort" else value.dtype), (value.shape, "int64")]


def topk(call: AtenCall) -> list[Result]:
    values = with_size(call, axis(call, -1), call.get("k"))
    return [values, (values[0], "int64")]


def pooled(call: AtenCall) -> Result:
    value, window = call.tensor(), call.sizes("kernel_size")
    axes = int(call.name.removesuffix("_with_indices")[-2])
    options = (window, call.get("stride") or window, call.get("padding", (0,)), call.get("dilation", (1,)))
    rows = zip(value.shape[-axes:], *(each * axes if len(each) == 1 else each for each in options), strict=True)
    up = call.get("ceil_mode", False)
    sizes = [(size + 2 * pad - gap * (width - 1) - 1 + (step - 1 if up else 0)) // step + 1
             for size, width, step, pad, gap in rows]  # fmt: skip
    return (*value.shape[:-axes], *sizes), value.dtype


def resized(call: AtenCall) -> Result:
    """To a size, or by a factor per axis."""
    value, factors = call.first, call.get("scale_factors")
    if factors is not None and call.get("output_size") is None:
        sizes = tuple(int(size * factor) for size, factor in zip(value.shape[2:], factors, strict=True))
    else:
        sizes = call.sizes("output_size")
    return (*value.shape[: -len(sizes)], *sizes), value.dtype


def sampled(call: AtenCall) -> Result:
    value = call.tensor("input")
    return (*value.shape[:2], *call.tensor("grid").shape[1:-1]), value.dtype


def indexed(shape: tuple[Size, ...], chosen: tuple[Any, ...], picked: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return a shape by numpy's rule: what index arrays pick stands in their place, in front where they are apart."""
    at = [axis for axis, each in enumerate(chosen) if each is not None]
    rest = [size for axis, size in enumerate(shape) if axis not in at]
    front = at[0] if at == list(range(at[0], at[0] + len(at))) else 0
    return (*rest[:front], *picked, *rest[front:])


def picked(call: AtenCall) -> Result:
    value, chosen = call.tensor(), call.get("indices", ())
    indices = [each for each in chosen if isinstance(each, Value)]
    if not indices or any(each.dtype == "bool" for each in indices):
        raise ShapeError("index: the number of selected elements was not recorded")
    return indexed(value.shape, chosen, broadcast([each.shape for each in indices])), value.dtype


def stacked(call: AtenCall) -> Result:
    shape = call.first.shape
    axis = call.get("dim", 0) % (len(shape) + 1)
    return (*shape[:axis], len(call.tensors), *shape[axis:]), promoted(call)


def padded(call: AtenCall) -> Result:
    value, pad = call.first, call.sizes("pad", "padding")
    shape = list(value.shape)
    for at in range(len(pad) // 2):
        shape[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    return tuple(shape), value.dtype


def repeated(call: AtenCall) -> Result:
    value, times = call.tensor(), call.sizes("repeats" if call.name == "repeat" else "dims")
    shape = (1,) * (len(times) - len(value.shape)) + value.shape
    return tuple(size * time for size, time in zip(shape, times, strict=True)), value.dtype


def loss(call: AtenCall) -> Result:
    return () if call.get("reduction", 1) in (1, 2) else call.tensor("target").shape, call.tensor().dtype


def one_hot(call: AtenCall) -> Result:
    classes = call.get("num_classes", -1)
    if classes < 1:
        raise ShapeError("one_hot: the number of classes was not recorded")
    return (*call.tensor().shape, classes), "int64"


def halved(call: AtenCall) -> Result:
    """Half the size along an axis."""
    at = axis(call, -1)
    return with_size(call, at, call.tensor().shape[at] // 2)


def untold(call: AtenCall) -> Result:
    """Refuse results whose size depends on values."""
    raise ShapeError(f"{call.name}: the shape of its result depends on values")


def results(form: Form, call: AtenCall) -> list[Result]:
    """Return the shapes and formats of what a call returns.

    Raises:
        ShapeError: The arguments do not tell.

    Example:
        >>> a, b = Value(0, "self", (4, 1), "bf16", "input"), Value(1, "other", (8,), "fp32", "input")
        >>> results(pointwise, AtenCall("aten.add.Tensor", {"self": a, "other": b}, (), ""))
        [((4, 8), 'fp32')]
    """
    outs = form(call)
    return outs if isinstance(outs, list) else [outs]
