"""Gathers, scatters, joins and other moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.program import Value
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.sizes import Size, prod
from roofline.ops.registry import broadcast


@with_options
def _put(call: Call, key: str, flops: int = 0) -> Result:
    """Values into some places of a tensor; a copy of the whole comes first unless it is done in place."""
    region, values = _region(call), call.maybe(key)
    if values is None:  # a number: written, not read
        values = call.op("fill", name="value", shape=region if region is not None else call.shape())
    elif region is not None and len(call.b.shape(values)) <= len(region):
        values = call.expand(values, region, "values")
    index = [name for name in call.tensors()[1:] if name != call.maybe(key)]
    return _into(call, values, index, flops)


def _region(call: Call) -> tuple[Size, ...] | None:
    """Return what an index chooses: as many places as there are values, where the call says how many."""
    index = call.args.get("index")
    if isinstance(index, Value) and call.what.startswith("scatter"):
        return index.shape
    chosen = call.args.get("indices")
    if not isinstance(chosen, tuple):
        return None
    indices = [each for each in chosen if isinstance(each, Value)]
    if any(each.dtype == "bool" for each in indices):
        return None
    return forms.indexed(call.shape(), chosen, broadcast([each.shape for each in indices]))


def _into(call: Call, values: str, index: Sequence[str] = (), flops: int = 0) -> str:
    """Write into the tensor, into what it is a part of, or into a copy."""
    write = call.writes[0] if call.writes else None
    if write is not None and write.base is not None:
        return call.walk.write_part(write, values, call.name, *index, flops=flops, **call.access())
    target = call.tensor() if write is not None else call.op("copy", call.tensor(), name="copy")
    return call.op("put", target, values, *index, flops=flops)


def _copy(call: Call) -> Result:
    """All of a tensor written over, or a part of one."""
    source = call.tensor("src")
    write = call.writes[0]
    if write.base is None and call.b.shape(source) == write.after.shape:
        same = call.b.tensor(source).dtype == write.after.dtype
        return call.op("copy" if same else "cast", source, name="copy")
    return _into(call, call.expand(source, write.after.shape, "values"))


def _cat(call: Call) -> Result:
    """Parts joined; one alone, beside others without elements, is copied too (cat_out_cuda of cuda/Shape.cu)."""
    return _joined(call, call.tensors(), call.get("dim", 0))


def _joined(call: Call, parts: Sequence[str], axis: int) -> str:
    """Join arrays, by vectors where they lie in order, by elements where all images have their channels last."""
    access = [way for value in call.record.tensors if (way := call.apart(value)) is not None]
    if access and all(value.channels_last for value in call.record.tensors):
        access = [("cast", 1, 0)]
    options: dict[str, Any] = {"access": max(access, key=lambda each: each[2])} if access else {}
    return call.op("cat", *parts, axis=axis, **options)


def _take(call: Call) -> Result:
    return call.op("take", *call.tensors(), shape=call.out.shape)


def _index(call: Call) -> Result:
    """Pick elements, or whole rows where only the first axis has an index."""
    chosen = call.get("indices")
    rows = isinstance(chosen, tuple) and isinstance(chosen[0], Value) and not any(chosen[1:])
    first = call.what == "index_select" and call.get("dim", 0) == 0
    options: dict[str, Any] = {"rows": True} if (rows or first) and len(call.shape()) > 1 else {}
    return call.op("take", *call.tensors(), shape=call.out.shape, **options)


def _rearrange(call: Call) -> Result:
    axes = call.get("dims", ()) if call.what == "roll" else ()
    options: dict[str, Any] = {"times": len(axes)} if len(axes) > 1 else {}
    return call.op("rearrange", call.tensors()[0], shape=call.out.shape, what=call.what, **options)


def _nearest(call: Call) -> Result:
    image = call.value("self" if call.value("self") else "input")
    layout: dict[str, Any] = {"what": call.what, "channels_last": bool(image and image.channels_last)}
    return call.op("rearrange", call.tensors()[0], shape=call.out.shape, **layout)


def _pad(call: Call) -> Result:
    """Add a border; PyTorch copies where there is none."""
    if all(isinstance(size, int) and size == 0 for size in call.get("pad")):
        return call.op("copy", call.tensor())
    return _rearrange(call)


def _scatter(call: Call) -> Result:
    return _into(call, call.tensor("src"))


def _stack(call: Call) -> Result:
    axis = call.get("dim", 0) % len(call.out.shape)
    parts = []
    for name in call.tensors():
        shape = call.b.shape(name)
        parts.append(call.b.op("view", name, name="layer", shape=(*shape[:axis], 1, *shape[axis:])))
    return parts[0] if len(parts) == 1 else _joined(call, parts, axis)


def _slice_backward(call: Call) -> Result:
    """A gradient laid into zeros."""
    key = "grad_output" if call.value("grad_output") else "grad_in"  # of a window, PyTorch has another word
    return call.op("rearrange", call.tensor(key), shape=call.out.shape)


def _packed(call: Call) -> Result:
    """Sequences of several lengths one step after the other, or back; how many there are at each step is a list."""
    source = call.maybe("input") or call.tensor("data")
    counts = next(value for value in call.record.outs[1:] if value is not None)
    moved = call.op("rearrange", source, shape=call.out.shape)
    return moved, call.b.op("fill", name="counts", shape=counts.shape, dtype=counts.dtype)


ROWS: dict[str, Row] = {
    **rows("embedding", lambda call: call.op("embedding", call.tensor("weight"), call.tensor("indices")),
           forms.by_rule),
    **rows("embedding_dense_backward", lambda call: call.op(
        "embedding_grad", call.tensor("grad_output"), call.tensor("indices"), v=call.get("num_weights")),
        forms.by_rule),
    **rows("index _unsafe_index", _index, forms.picked),
    **rows("gather take", _take, forms.shaped("index")),
    **rows("take_along_dim", _take, forms.shaped("indices")),
    **rows("index_select", _index, lambda call: forms.with_size(
        call, forms.axis(call, 0), prod(call.tensor("index").shape))),
    # A row of the table for each index, whatever adds up the rows of a bag.
    **rows("embedding_bag _embedding_bag _embedding_bag_forward_only", lambda call: call.op(
        "take", *call.tensors(), shape=call.out.shape, rows=True), forms.untold),
    **rows("masked_select nonzero unique_dim _unique2", _take, forms.untold),
    **rows("index_put _unsafe_index_put _index_put_impl", _put("values"), forms.like("self")),
    **rows("scatter masked_scatter", _put("src"), forms.like("self")),
    **rows("scatter_add scatter_reduce", _put("src", 1), forms.like("self")),
    **rows("index_add", _put("source", 1), forms.like("self")),
    **rows("index_copy", _put("source"), forms.like("self")),
    **rows("index_fill", _put("value"), forms.like("self")),
    **rows("copy", _copy, forms.like("self")),
    **rows("slice_scatter select_scatter diagonal_scatter", _scatter, forms.like("self")),
    **rows("as_strided_scatter", _scatter, forms.untold),
    **rows("cat", _cat, lambda call: (forms.BY_RULE, forms.promoted(call))),
    **rows("stack", _stack, forms.stacked),
    **rows("constant_pad_nd", _pad, forms.padded),
    **rows("pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
           "replication_pad3d", _rearrange, forms.padded),
    **rows("roll flip triu tril rot90", _rearrange, forms.like("self")),
    **rows("repeat tile", _rearrange, forms.repeated),
    **rows("repeat_interleave im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle diag_embed diag",
           _rearrange, forms.untold),
    **rows("trace", _rearrange, forms.reduced("sum")),
    **rows((f"{name}{axes}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for axes in (1, 2, 3)),
           _nearest, forms.resized),
    **rows("slice_backward select_backward diagonal_backward unfold_backward value_selecting_reduction_backward",
           _slice_backward, forms.sized("input_sizes", "sizes")),
    **rows("index_select_backward", _slice_backward, forms.sized("self_sizes")),
    **rows("constant_pad_nd_backward", _slice_backward, forms.untold),
    **rows("one_hot", _rearrange, forms.one_hot),
    **rows("_pack_padded_sequence _pad_packed_sequence", _packed, forms.untold),
}  # fmt: skip
