"""Shapes and formats of what an operator returns, which profilers do not record, by its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.frontends.torch.program import Value
from roofline.frontends.torch.rules import attention, contractions, moves, pointwise, recurrent
from roofline.frontends.torch.schemas import SCALAR_TYPES
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import prod
from roofline.ops.registry import broadcast

#: A result's shape and number format.
Result = tuple[tuple[Any, ...], str]

#: Shape of a result that the operator's rule works out by itself.
BY_RULE = (-1,)

#: Formats by what they promote to: a later one takes an earlier one in, but for fp16 and bf16.
_ORDER = ("bool", "int8", "int16", "int32", "int64", "fp8", "fp16", "bf16", "fp32", "fp64")
_FLOATS = _ORDER[5:]


@dataclass(frozen=True)
class Given:
    """Arguments of a recorded call."""

    name: str
    args: Mapping[str, Any]

    @property
    def tensors(self) -> tuple[Value, ...]:
        """All tensors in order, those in lists too."""
        each = [value if isinstance(value, tuple) else (value,) for value in self.args.values()]
        return tuple(value for values in each for value in values if isinstance(value, Value))

    @property
    def first(self) -> Value:
        """The first tensor."""
        if not self.tensors:
            raise ShapeError(f"{self.name}: no tensor was recorded")
        return self.tensors[0]

    def tensor(self, key: str) -> Value:
        """A tensor that must be there."""
        found = self.args.get(key)
        if not isinstance(found, Value):
            raise ShapeError(f"{self.name}: {key} was not recorded")
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """A plain argument."""
        found = self.args.get(key)
        return default if found is None else found

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers that must be there."""
        found = self.get(key)
        if not isinstance(found, tuple) or not all(isinstance(size, int) for size in found):
            raise ShapeError(f"{self.name}: {key} was not recorded")
        return found

    def format(self, default: str) -> str:
        """The format that was asked for."""
        return SCALAR_TYPES.get(self.get("dtype", self.get("out_dtype")), default)


def promoted(given: Given) -> str:
    """The common format of the tensors; those without axes and numbers count where they are of a higher kind."""
    arrays = [value.dtype for value in given.tensors if value.shape]
    scalars = [value.dtype for value in given.tensors if not value.shape]
    best = _common(arrays or scalars)
    number = any(isinstance(value, float) for key, value in given.args.items() if key in ("other", "value", "exponent"))
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


def _floating(dtype: str) -> str:
    return dtype if dtype in _FLOATS else "fp32"


# --- one function a form of result --------------------------------------------------------------------------------


def _like(key: str, *also: str) -> Callable[[Given], list[Result]]:
    """As an argument; further results have the same shape and formats of their own."""

    def results(given: Given) -> list[Result]:
        value = given.tensor(key)
        return [(value.shape, value.dtype), *((value.shape, dtype) for dtype in also)]

    return results


def _pointwise(given: Given) -> list[Result]:
    shape = broadcast([value.shape for value in given.tensors])
    dtype = "bool" if given.name in _COMPARISONS else promoted(given)
    if given.name in ("div", "true_divide", "sigmoid", "exp", "sqrt", "log", "tanh"):
        dtype = _floating(dtype)
    is_sum = given.name in _LOSSES and given.get("reduction") in (1, 2)
    return [(() if is_sum else shape, dtype)]


def _chosen(given: Given) -> list[Result]:
    """``where``: the condition has no say in the format."""
    values = Given(given.name, {key: value for key, value in given.args.items() if key != "condition"})
    return [(broadcast([value.shape for value in given.tensors]), promoted(values))]


def _by_rule(given: Given) -> list[Result]:
    """The rule works the shapes out, of three results at most."""
    dtype = "int32" if given.name == "_int_mm" else given.format(given.first.dtype)
    return [(BY_RULE, dtype)] * 3


def _addmm(given: Given) -> list[Result]:
    left, right = given.tensor("mat1"), given.tensor("mat2")
    return [((*left.shape[:-1], *right.shape[-1:]), left.dtype)]


def _filled(given: Given) -> list[Result]:
    like = given.args.get("self")
    if isinstance(like, Value) and not given.name.startswith("new_"):
        return [(like.shape, given.format(like.dtype))]
    dtype = like.dtype if isinstance(like, Value) else "fp32"
    return [(given.sizes("size"), given.format(dtype))]


def _arange(given: Given) -> list[Result]:
    start, end, step = given.get("start", 0), given.get("end"), given.get("step", 1)
    if given.name == "arange":
        whole = all(isinstance(value, int) for value in (start, end, step))
        return [((max(-int(-(end - start) // step), 0),), given.format("int64" if whole else "fp32"))]
    return [((given.get("steps"),), given.format("fp32"))]


def _square(given: Given) -> list[Result]:
    return [((given.get("n"), given.get("m", given.get("n"))), given.format("fp32"))]


def _cast(given: Given) -> list[Result]:
    value = given.tensor("self")
    other = given.args.get("other")
    return [(value.shape, given.format(other.dtype if isinstance(other, Value) else value.dtype))]


def _halved(given: Given) -> list[Result]:
    value = given.tensor("self")
    axis = given.get("dim", -1) % len(value.shape)
    return [(tuple(size // 2 if at == axis else size for at, size in enumerate(value.shape)), value.dtype)]


def _reduced(how: str) -> Callable[[Given], list[Result]]:
    """Formats: ``sum`` of whole numbers is int64, ``index`` int64, ``bool``, ``same``, ``pair`` is values and index."""

    def results(given: Given) -> list[Result]:
        value = given.first
        shape = _without(value.shape, given.get("dim"), bool(given.get("keepdim", False)))
        whole = value.dtype not in _FLOATS
        dtype = {"sum": "int64" if whole else value.dtype, "index": "int64", "bool": "bool"}.get(how, value.dtype)
        if how == "pair" and given.get("dim") is not None:
            return [(shape, dtype), (shape, "int64")]
        return [(shape, given.format(dtype))] * (2 if how == "two" else 1)

    return results


def _without(shape: tuple[Any, ...], dim: Any, keep: bool) -> tuple[Any, ...]:
    rank = max(len(shape), 1)
    named = dim if isinstance(dim, tuple) else () if dim is None else (dim,)
    if any(not -rank <= axis < rank for axis in named):
        raise ShapeError(f"an axis that {list(shape)} has not")
    gone = {axis % rank for axis in named} or set(range(rank))
    return tuple(1 if at in gone else size for at, size in enumerate(shape) if keep or at not in gone)


def _sorted(given: Given) -> list[Result]:
    value = given.first
    return [(value.shape, "int64" if given.name == "argsort" else value.dtype), (value.shape, "int64")]


def _topk(given: Given) -> list[Result]:
    value, axis = given.tensor("self"), given.get("dim", -1) % len(given.tensor("self").shape)
    shape = tuple(given.get("k") if at == axis else size for at, size in enumerate(value.shape))
    return [(shape, value.dtype), (shape, "int64")]


def _pooled(given: Given) -> list[Result]:
    value, window = given.tensor("self"), given.sizes("kernel_size")
    axes = int(given.name.removesuffix("_with_indices")[-2])
    window, steps, pads, spread = (
        each * axes if len(each) == 1 else each
        for each in (window, given.get("stride") or window, given.get("padding", (0,)), given.get("dilation", (1,)))
    )
    up = [step - 1 if given.get("ceil_mode", False) else 0 for step in steps]
    sizes = tuple(
        (size + 2 * pad - gap * (width - 1) - 1 + extra) // step + 1
        for size, width, step, pad, gap, extra in zip(
            value.shape[-axes:], window, steps, pads, spread, up, strict=True
        )
    )  # fmt: skip
    return [((*value.shape[:-axes], *sizes), value.dtype)]


def _resized(given: Given) -> list[Result]:
    value, sizes = given.first, given.sizes("output_size")
    return [((*value.shape[: -len(sizes)], *sizes), value.dtype)]


def _upsampled(given: Given) -> list[Result]:
    """To a size, or by a factor an axis."""
    value, factors = given.first, given.get("scale_factors")
    if factors is None or given.get("output_size") is not None:
        return _resized(given)
    sizes = (int(size * factor) for size, factor in zip(value.shape[2:], factors, strict=True))
    return [((*value.shape[:2], *sizes), value.dtype)]


def _sampled(given: Given) -> list[Result]:
    value, grid = given.tensor("input"), given.tensor("grid")
    return [((*value.shape[:2], *grid.shape[1:-1]), value.dtype)]


def _as_index(key: str) -> Callable[[Given], list[Result]]:
    return lambda given: [(given.tensor(key).shape, given.tensor("self").dtype)]


def _selected(given: Given) -> list[Result]:
    value = given.tensor("self")
    axis = given.get("dim", 0) % len(value.shape)
    taken = prod(given.tensor("index").shape)
    return [(tuple(taken if at == axis else size for at, size in enumerate(value.shape)), value.dtype)]


def _indexed(given: Given) -> list[Result]:
    value, chosen = given.tensor("self"), given.get("indices", ())
    picked = [each for each in chosen if isinstance(each, Value)]
    if not picked or any(each.dtype == "bool" for each in picked):
        raise ShapeError("index: how much it picks was not recorded")
    return [(moves._indexed(value.shape, chosen, broadcast([each.shape for each in picked])), value.dtype)]


def _joined(given: Given) -> list[Result]:
    return [(BY_RULE, promoted(given))]


def _stacked(given: Given) -> list[Result]:
    parts, axis = given.tensors, given.get("dim", 0) % (len(given.first.shape) + 1)
    shape = given.first.shape
    return [((*shape[:axis], len(parts), *shape[axis:]), promoted(given))]


def _padded(given: Given) -> list[Result]:
    value, pad = given.first, given.sizes(next(key for key in ("pad", "padding") if given.get(key) is not None))
    shape = list(value.shape)
    for at in range(len(pad) // 2):
        shape[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    return [(tuple(shape), value.dtype)]


def _repeated(given: Given) -> list[Result]:
    value, times = given.tensor("self"), given.sizes("repeats" if given.name == "repeat" else "dims")
    shape = (1,) * (len(times) - len(value.shape)) + value.shape
    return [(tuple(size * time for size, time in zip(shape, times, strict=True)), value.dtype)]


def _sized(key: str) -> Callable[[Given], list[Result]]:
    return lambda given: [(given.sizes(key), given.first.dtype)]


def _loss(given: Given) -> list[Result]:
    summed = given.get("reduction", 1) in (1, 2)
    return [(() if summed else given.tensor("target").shape, given.tensor("self").dtype)]


def _one_hot(given: Given) -> list[Result]:
    classes = given.get("num_classes", -1)
    if classes < 1:
        raise ShapeError("one_hot: the number of classes was not recorded")
    return [((*given.tensor("self").shape, classes), "int64")]


#: Losses that become one number unless ``reduction`` says otherwise.
_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
           "kl_div")  # fmt: skip

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan",
                "isinf", "isfinite", "isin", "signbit", "isposinf", "isneginf")  # fmt: skip

_UP = tuple(name for name in (*pointwise.RULES, *moves.RULES) if name.startswith(("upsample", "_upsample")))

#: The form of each operator's results; of those without a row, one result as large as all arguments together.
FORMS: dict[str, Callable[[Given], list[Result]]] = {
    **dict.fromkeys((*contractions.RULES, *attention.RULES, *recurrent.RULES), _by_rule),
    **dict.fromkeys(("embedding", "embedding_dense_backward", "native_layer_norm_backward", "rms_norm_backward",
                     "native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward",
                     "native_group_norm_backward"), _by_rule),
    "addmm": _addmm,
    "where": _chosen,
    **dict.fromkeys(pointwise._FILLS, _filled),
    **dict.fromkeys(("arange", "linspace", "logspace"), _arange),
    "eye": _square,
    "randperm": lambda given: [((given.get("n"),), given.format("int64"))],
    "scalar_tensor": lambda given: [((), given.format("fp32"))],
    **dict.fromkeys(("_to_copy", "to", "clone", "type_as"), _cast),
    "native_dropout": _like("input", "bool"),
    "glu": _halved,
    **dict.fromkeys(_UP, _upsampled),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d"), _sampled),
    **dict.fromkeys(("bucketize", "searchsorted"), lambda given: [(given.tensor("self").shape, "int64")]),
    **dict.fromkeys(("_softmax", "softmax", "_log_softmax", "log_softmax", "_safe_softmax"), _cast),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _like("grad_output")),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm", "native_batch_norm", "_native_batch_norm_legit",
                     "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "_batch_norm_with_update",
                     "_batch_norm_no_update", "native_group_norm"), _like("input")),
    **dict.fromkeys(("sum", "prod", "nansum", "cumsum_", "trace"), _reduced("sum")),
    **dict.fromkeys(("mean", "var", "std", "logsumexp", "amax", "amin", "median", "norm", "linalg_vector_norm",
                     "linalg_norm"), _reduced("same")),
    **dict.fromkeys(("argmax", "argmin", "count_nonzero"), _reduced("index")),
    **dict.fromkeys(("any", "all", "equal"), _reduced("bool")),
    **dict.fromkeys(("max", "min", "mode", "kthvalue"), _reduced("pair")),
    **dict.fromkeys(("aminmax", "var_mean", "std_mean"), _reduced("two")),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _cast),
    **dict.fromkeys(("sort", "argsort", "cummax", "cummin", "msort"), _sorted),
    "topk": _topk,
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
                     "avg_pool1d", "avg_pool2d", "avg_pool3d"), _pooled),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool1d",
                     "mkldnn_adaptive_avg_pool2d", "adaptive_max_pool2d", "adaptive_max_pool3d"), _resized),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
                     "max_pool3d_with_indices_backward", "avg_pool3d_backward", "adaptive_max_pool2d_backward",
                     "adaptive_max_pool3d_backward", "_adaptive_avg_pool3d_backward"), _like("self")),
    **dict.fromkeys((f"{name}_backward" for name in _UP), _sized("input_size")),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss"), _loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _like("self")),
    "index_select": _selected,
    "gather": _as_index("index"),
    "take": _as_index("index"),
    "take_along_dim": _as_index("indices"),
    **dict.fromkeys(("index", "_unsafe_index"), _indexed),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl", "scatter", "masked_scatter", "scatter_add",
                     "scatter_reduce", "index_add", "index_copy", "index_fill", "copy", "slice_scatter",
                     "select_scatter", "diagonal_scatter", "roll", "flip", "triu", "tril", "rot90", "masked_fill"),
                    _like("self")),
    "cat": _joined,
    "stack": _stacked,
    **dict.fromkeys(("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
                     "replication_pad2d", "replication_pad3d"), _padded),
    **dict.fromkeys(("repeat", "tile"), _repeated),
    **dict.fromkeys(("slice_backward", "select_backward", "diagonal_backward", "unfold_backward",
                     "value_selecting_reduction_backward"), lambda given: [(_input_sizes(given), given.first.dtype)]),
    "index_select_backward": _sized("self_sizes"),
    "one_hot": _one_hot,
    **dict.fromkeys(("_cudnn_rnn", "mkldnn_rnn_layer", "_cudnn_rnn_backward", "mkldnn_rnn_layer_backward",
                     "_embedding_bag", "_embedding_bag_forward_only"), _by_rule),
    **dict.fromkeys(("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"), _by_rule),
}  # fmt: skip

#: Operators with a rule whose results no argument tells: how many elements are chosen depends on their values.
UNTOLD = frozenset({"masked_select", "nonzero", "unique_dim", "_unique2", "embedding_bag",
                    "repeat_interleave", "histc", "bincount", "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle",
                    "channel_shuffle", "diag_embed", "diag", "_pack_padded_sequence", "_pad_packed_sequence",
                    "as_strided_scatter", "fractional_max_pool2d", "fractional_max_pool2d_backward",
                    "constant_pad_nd_backward", "tril_indices", "triu_indices", "multinomial",
                    "_weight_norm_interface_backward"})  # fmt: skip


def _input_sizes(given: Given) -> tuple[int, ...]:
    return given.sizes("input_sizes" if given.get("input_sizes") is not None else "sizes")


def results(name: str, args: Mapping[str, Any]) -> list[Result]:
    """What an operator returns.

    Args:
        name: Of its rule.
        args: Its arguments, tensors as values.

    Raises:
        ShapeError: The arguments do not tell.

    Example:
        >>> a = Value(0, "self", (4, 1), "bf16", "input")
        >>> results("add", {"self": a, "other": Value(1, "other", (8,), "fp32", "input")})
        [((4, 8), 'fp32')]
    """
    if name in UNTOLD:
        raise ShapeError(f"{name}: the shape of its result depends on values")
    by_list = name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad"))
    return (_by_rule if by_list else FORMS.get(name, _pointwise))(Given(name, args))
