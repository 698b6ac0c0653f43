"""Gathers, scatters, joins and other moves."""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.frontends.torch.program import Value
from roofline.ir.sizes import Size
from roofline.ops.registry import broadcast


def _embedding(site: Site) -> Result:
    return site.op("embedding", site.tensor("weight"), site.tensor("indices"))


def _embedding_backward(site: Site) -> Result:
    return site.op("embedding_grad", site.tensor("grad_output"), site.tensor("indices"), v=site.get("num_weights"))


def _take(site: Site) -> Result:
    return site.op("take", *site.tensors(), shape=site.out.shape)


def _put(values_key: str, flops: int = 0) -> Rule:
    """Values into some places of a tensor; a copy of the whole comes first unless it is done in place."""

    def rule(site: Site) -> Result:
        region = _region(site)
        values = site.maybe(values_key)
        values = _filled(site, region) if values is None else _spread(site, values, region)
        index = [name for name in site.tensors()[1:] if name != site.maybe(values_key)]
        return _into(site, values, index, flops)

    return rule


def _region(site: Site) -> tuple[Size, ...] | None:
    """What an index chooses: as many places as there are values, where the call says how many."""
    index = site.call.args.get("index")
    if isinstance(index, Value) and site.call.name.startswith("scatter"):
        return index.shape
    chosen = site.call.args.get("indices")
    if not isinstance(chosen, tuple):
        return None
    given = [each for each in chosen if isinstance(each, Value)]
    if any(each.dtype == "bool" for each in given):
        return None
    return _indexed(site.shape(), chosen, broadcast([each.shape for each in given]))


def _indexed(shape: tuple[Size, ...], chosen: tuple[Any, ...], picked: tuple[Size, ...]) -> tuple[Size, ...]:
    """Numpy's rule: what index arrays pick stands where they stand side by side, and in front where they do not."""
    at = [axis for axis, each in enumerate(chosen) if each is not None]
    rest = [size for axis, size in enumerate(shape) if axis not in at]
    front = at[0] if at == list(range(at[0], at[0] + len(at))) else 0
    return (*rest[:front], *picked, *rest[front:])


def _filled(site: Site, region: tuple[Size, ...] | None) -> str:
    """A number in place of values: written, not read."""
    return site.op("fill", name="value", shape=region if region is not None else site.shape())


def _spread(site: Site, values: str, region: tuple[Size, ...] | None) -> str:
    if region is None or len(site.b.shape(values)) > len(region):
        return values
    return emit.expand(site.b, values, region, "values")


def _into(site: Site, values: str, index: list[str], flops: int = 0) -> str:
    """Write into the tensor, into what it is a part of, or into a copy."""
    write = site.call.writes[0] if site.call.writes else None
    if write is None:
        target = site.op("copy", site.tensor(), name="copy")
        return site.op("put", target, values, *index, flops=flops)
    if write.base is None:
        return site.op("put", site.tensor(), values, *index, flops=flops)
    before, after = write.base
    whole = site.b.op(
        "put", site.lowering.tensor(before), values, *index, name=site.name, dtype=before.dtype, flops=flops
    )
    site.lowering.held[after.number] = whole
    return site.b.op("slice", whole, name="part", shape=write.after.shape)


def _copy(site: Site) -> Result:
    """All of a tensor written over, or a part of one."""
    source = site.tensor("src")
    write = site.call.writes[0]
    if write.base is None and site.b.shape(source) == write.after.shape:
        same = site.b.tensor(source).dtype == write.after.dtype
        return site.op("copy" if same else "cast", source, name="copy")
    return _into(site, emit.expand(site.b, source, write.after.shape, "values"), [])


def _scatter_view(site: Site) -> Result:
    return _into(site, site.tensor("src"), [])


def _cat(site: Site) -> Result:
    parts = site.tensors()
    if len(parts) == 1:
        return parts[0]
    return site.op("cat", *parts, axis=site.get("dim", 0))


def _stack(site: Site) -> Result:
    axis = site.get("dim", 0) % len(site.out.shape)
    parts = []
    for name in site.tensors():
        shape = site.b.shape(name)
        parts.append(site.b.op("view", name, name="layer", shape=(*shape[:axis], 1, *shape[axis:])))
    return parts[0] if len(parts) == 1 else site.op("cat", *parts, axis=axis)


def _rearrange(site: Site) -> Result:
    source = site.tensors()[0]
    return site.op("rearrange", source, shape=site.out.shape)


def _slice_backward(site: Site) -> Result:
    """A gradient laid into zeros."""
    key = "grad_output" if site.value("grad_output") else "grad_in"  # of a window, PyTorch has another word
    return site.op("rearrange", site.tensor(key), shape=site.out.shape)


def _packed(site: Site) -> Result:
    """Sequences of several lengths one step after the other, or back; how many there are at each step is a list."""
    source = site.maybe("input") or site.tensor("data")
    counts = next(value for value in site.call.outs[1:] if value is not None)
    moved = site.op("rearrange", source, shape=site.out.shape)
    return moved, site.b.op("fill", name="counts", shape=counts.shape, dtype=counts.dtype)


def _one_hot(site: Site) -> Result:
    return site.op("rearrange", site.tensor(), shape=site.out.shape)


RULES: dict[str, Rule] = {
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("index", "gather", "index_select", "take", "take_along_dim", "masked_select", "_unsafe_index",
                     "embedding_bag", "_embedding_bag", "nonzero", "unique_dim", "_unique2"), _take),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl"), _put("values")),
    **dict.fromkeys(("scatter", "masked_scatter"), _put("src")),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), _put("src", 1)),
    "index_add": _put("source", 1),
    "index_copy": _put("source"),
    "index_fill": _put("value"),
    "copy": _copy,
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"), _scatter_view),
    "cat": _cat,
    "stack": _stack,
    **dict.fromkeys(("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "replication_pad2d",
                     "replication_pad1d", "replication_pad3d", "roll", "flip", "repeat", "tile", "repeat_interleave",
                     "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "triu", "tril",
                     "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
                     *(f"_upsample_nearest_exact{axes}d" for axes in (1, 2, 3)),
                     "rot90", "diag_embed", "trace", "diag"), _rearrange),
    **dict.fromkeys(("slice_backward", "select_backward", "diagonal_backward", "unfold_backward",
                     "constant_pad_nd_backward", "index_select_backward", "value_selecting_reduction_backward"),
                    _slice_backward),
    "one_hot": _one_hot,
    **dict.fromkeys(("_pack_padded_sequence", "_pad_packed_sequence"), _packed),
}  # fmt: skip
