"""Shapes and formats of what operators return, which profilers do not record, by their arguments: a form per kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.frontends.torch.program import Value
from roofline.frontends.torch.schemas import SCALAR_TYPES
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Size, prod
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


@dataclass(frozen=True)
class Args:
    """Arguments of a recorded call."""

    name: str
    named: Mapping[str, Any]

    @property
    def tensors(self) -> tuple[Value, ...]:
        """Return all tensors in order, those in lists too."""
        each = [value if isinstance(value, tuple) else (value,) for value in self.named.values()]
        return tuple(value for values in each for value in values if isinstance(value, Value))

    @property
    def first(self) -> Value:
        """Return the first tensor."""
        if not self.tensors:
            raise ShapeError(f"{self.name}: no tensor was recorded")
        return self.tensors[0]

    def tensor(self, key: str = "self") -> Value:
        """Return a tensor that must be there."""
        value = self.named.get(key)
        if not isinstance(value, Value):
            raise ShapeError(f"{self.name}: {key} was not recorded")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return a plain argument."""
        value = self.named.get(key)
        return default if value is None else value

    def sizes(self, *keys: str) -> tuple[int, ...]:
        """Return a list of whole numbers that must be there, under the first of some names."""
        key = next((key for key in keys if self.get(key) is not None), keys[-1])
        sizes = self.get(key)
        if not isinstance(sizes, tuple) or not all(isinstance(size, int) for size in sizes):
            raise ShapeError(f"{self.name}: {key} was not recorded")
        return sizes

    def axis(self, default: int) -> Any:
        """Return the axis ``dim`` of ``self`` counted from the front."""
        return self.get("dim", default) % len(self.tensor().shape)

    def format(self, default: str) -> str:
        """Return the format that was asked for."""
        return SCALAR_TYPES.get(self.get("dtype", self.get("out_dtype")), default)

    def resized(self, axis: int, size: Any) -> Result:
        """Return ``self`` with another size along an axis."""
        value = self.tensor()
        return tuple(size if at == axis else old for at, old in enumerate(value.shape)), value.dtype


#: How to work out the results of an operator: one, or several.
Form = Callable[[Args], "Result | list[Result]"]


def promoted(args: Args) -> str:
    """Return the common format of the tensors; those without axes and numbers count where they are of a higher kind."""
    arrays = [value.dtype for value in args.tensors if value.shape]
    scalars = [value.dtype for value in args.tensors if not value.shape]
    best = _common(arrays or scalars)
    number = any(isinstance(args.get(key), float) for key in ("other", "value", "exponent"))
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
    return lambda args: [(args.tensor(key).shape, dtype) for dtype in (args.tensor(key).dtype, *also)]


def shaped(key: str, like: str = "self") -> Form:
    """The shape of one argument in the format of another."""
    return lambda args: (args.tensor(key).shape, args.tensor(like).dtype)


def sized(*keys: str) -> Form:
    """A shape that is an argument itself."""
    return lambda args: (args.sizes(*keys), args.first.dtype)


def pointwise(args: Args) -> Result:
    shape = broadcast([value.shape for value in args.tensors])
    dtype = "bool" if args.name in _COMPARISONS else promoted(args)
    if args.name in ("div", "true_divide", "sigmoid", "exp", "sqrt", "log", "tanh") and dtype not in _FLOATS:
        dtype = "fp32"
    is_sum = args.name in _LOSSES and args.get("reduction") in (1, 2)
    return () if is_sum else shape, dtype


def where(args: Args) -> Result:
    """The condition has no say in the format."""
    values = Args(args.name, {key: value for key, value in args.named.items() if key != "condition"})
    return broadcast([value.shape for value in args.tensors]), promoted(values)


def by_rule(args: Args) -> list[Result]:
    """The rule works the shapes out, of three results at most."""
    return [(BY_RULE, "int32" if args.name == "_int_mm" else args.format(args.first.dtype))] * 3


def addmm(args: Args) -> Result:
    left, right = args.tensor("mat1"), args.tensor("mat2")
    return (*left.shape[:-1], *right.shape[-1:]), left.dtype


def filled(args: Args) -> Result:
    like = args.named.get("self")
    if isinstance(like, Value) and not args.name.startswith("new_"):
        return like.shape, args.format(like.dtype)
    return args.sizes("size"), args.format(like.dtype if isinstance(like, Value) else "fp32")


def arange(args: Args) -> Result:
    if args.name != "arange":
        return (args.get("steps"),), args.format("fp32")
    start, end, step = args.get("start", 0), args.get("end"), args.get("step", 1)
    whole = all(isinstance(value, int) for value in (start, end, step))
    return (max(-int(-(end - start) // step), 0),), args.format("int64" if whole else "fp32")


def cast(args: Args) -> Result:
    value, other = args.tensor(), args.named.get("other")
    return value.shape, args.format(other.dtype if isinstance(other, Value) else value.dtype)


def reduced(how: str) -> Form:
    """Formats: ``sum`` of whole numbers is int64, ``index`` int64, ``bool``, ``same``, ``pair`` is values and index."""

    def results(args: Args) -> list[Result]:
        value, dim = args.first, args.get("dim")
        shape = _without(value.shape, dim, bool(args.get("keepdim", False)))
        whole = value.dtype not in _FLOATS
        dtype = {"sum": "int64" if whole else value.dtype, "index": "int64", "bool": "bool"}.get(how, value.dtype)
        if how == "pair" and dim is not None:
            return [(shape, dtype), (shape, "int64")]
        return [(shape, args.format(dtype))] * (2 if how == "two" else 1)

    return results


def _without(shape: tuple[Any, ...], dim: Any, keepdim: bool) -> tuple[Any, ...]:
    rank = max(len(shape), 1)
    axes = dim if isinstance(dim, tuple) else () if dim is None else (dim,)
    if any(not -rank <= axis < rank for axis in axes):
        raise ShapeError(f"an axis that {list(shape)} has not")
    reduced = {axis % rank for axis in axes} or set(range(rank))
    return tuple(1 if at in reduced else size for at, size in enumerate(shape) if keepdim or at not in reduced)


def ordered(args: Args) -> list[Result]:
    value = args.first
    return [(value.shape, "int64" if args.name == "argsort" else value.dtype), (value.shape, "int64")]


def topk(args: Args) -> list[Result]:
    values = args.resized(args.axis(-1), args.get("k"))
    return [values, (values[0], "int64")]


def pooled(args: Args) -> Result:
    value, window = args.tensor(), args.sizes("kernel_size")
    axes = int(args.name.removesuffix("_with_indices")[-2])
    options = (window, args.get("stride") or window, args.get("padding", (0,)), args.get("dilation", (1,)))
    rows = zip(value.shape[-axes:], *(each * axes if len(each) == 1 else each for each in options), strict=True)
    up = args.get("ceil_mode", False)
    sizes = [(size + 2 * pad - gap * (width - 1) - 1 + (step - 1 if up else 0)) // step + 1
             for size, width, step, pad, gap in rows]  # fmt: skip
    return (*value.shape[:-axes], *sizes), value.dtype


def resized(args: Args) -> Result:
    """To a size, or by a factor per axis."""
    value, factors = args.first, args.get("scale_factors")
    if factors is not None and args.get("output_size") is None:
        sizes = tuple(int(size * factor) for size, factor in zip(value.shape[2:], factors, strict=True))
    else:
        sizes = args.sizes("output_size")
    return (*value.shape[: -len(sizes)], *sizes), value.dtype


def sampled(args: Args) -> Result:
    value = args.tensor("input")
    return (*value.shape[:2], *args.tensor("grid").shape[1:-1]), value.dtype


def indexed(shape: tuple[Size, ...], chosen: tuple[Any, ...], picked: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return a shape by numpy's rule: what index arrays pick stands in their place, in front where they are apart."""
    at = [axis for axis, each in enumerate(chosen) if each is not None]
    rest = [size for axis, size in enumerate(shape) if axis not in at]
    front = at[0] if at == list(range(at[0], at[0] + len(at))) else 0
    return (*rest[:front], *picked, *rest[front:])


def picked(args: Args) -> Result:
    value, chosen = args.tensor(), args.get("indices", ())
    indices = [each for each in chosen if isinstance(each, Value)]
    if not indices or any(each.dtype == "bool" for each in indices):
        raise ShapeError("index: how much it picks was not recorded")
    return indexed(value.shape, chosen, broadcast([each.shape for each in indices])), value.dtype


def stacked(args: Args) -> Result:
    shape = args.first.shape
    axis = args.get("dim", 0) % (len(shape) + 1)
    return (*shape[:axis], len(args.tensors), *shape[axis:]), promoted(args)


def padded(args: Args) -> Result:
    value, pad = args.first, args.sizes("pad", "padding")
    shape = list(value.shape)
    for at in range(len(pad) // 2):
        shape[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    return tuple(shape), value.dtype


def repeated(args: Args) -> Result:
    value, times = args.tensor(), args.sizes("repeats" if args.name == "repeat" else "dims")
    shape = (1,) * (len(times) - len(value.shape)) + value.shape
    return tuple(size * time for size, time in zip(shape, times, strict=True)), value.dtype


def loss(args: Args) -> Result:
    return () if args.get("reduction", 1) in (1, 2) else args.tensor("target").shape, args.tensor().dtype


def one_hot(args: Args) -> Result:
    classes = args.get("num_classes", -1)
    if classes < 1:
        raise ShapeError("one_hot: the number of classes was not recorded")
    return (*args.tensor().shape, classes), "int64"


def selected(args: Args) -> Result:
    """As many places along an axis as an index has."""
    return args.resized(args.axis(0), prod(args.tensor("index").shape))


def halved(args: Args) -> Result:
    """Half the size along an axis."""
    axis = args.axis(-1)
    return args.resized(axis, args.tensor().shape[axis] // 2)


def index(args: Args) -> Result:
    """A place for each element."""
    return args.tensor().shape, "int64"


def square(args: Args) -> Result:
    """A matrix of given sizes."""
    return (args.get("n"), args.get("m", args.get("n"))), args.format("fp32")


def listed(args: Args) -> Result:
    """So many whole numbers."""
    return (args.get("n"),), args.format("int64")


def scalar(args: Args) -> Result:
    """One number."""
    return (), args.format("fp32")


def joined(args: Args) -> Result:
    """Arrays one after the other."""
    return BY_RULE, promoted(args)


def untold(args: Args) -> Result:
    """Refuse results whose size depends on values."""
    raise ShapeError(f"{args.name}: the shape of its result depends on values")


def results(form: Form, name: str, named: Mapping[str, Any]) -> list[Result]:
    """Return the shapes and formats of what an operator returns.

    Args:
        form: Of its results.
        name: Of its rule.
        named: Its arguments, tensors as values.

    Raises:
        ShapeError: The arguments do not tell.

    Example:
        >>> a = Value(0, "self", (4, 1), "bf16", "input")
        >>> results(pointwise, "add", {"self": a, "other": Value(1, "other", (8,), "fp32", "input")})
        [((4, 8), 'fp32')]
    """
    outs = form(Args(name, named))
    return outs if isinstance(outs, list) else [outs]
