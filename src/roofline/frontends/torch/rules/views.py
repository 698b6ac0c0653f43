"""Views: the same memory under another shape."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site


def _view(site: Site) -> Result:
    return emit.view(site.b, site.tensor(), site.out.shape, site.name)


def _part(site: Site) -> Result:
    """The results look at parts of the input."""
    source = site.tensor()
    shapes = [value.shape for value in site.call.outs if value is not None]
    if shapes == [site.b.shape(source)]:
        return source
    return tuple(site.b.op("slice", source, name=site.name, shape=shape) for shape in shapes)


def _permuted(site: Site, axes: list[int]) -> Result:
    source = site.tensor()
    rank = len(axes)
    if axes == list(range(rank)):
        return source
    name = site.b.op("permute", source, name=site.name, axes=tuple(axes))
    if rank >= 2 and axes == [*range(rank - 2), rank - 1, rank - 2]:
        site.lowering.turned[name] = source
    return name


def _transpose(site: Site) -> Result:
    rank = len(site.shape())
    if rank < 2:
        return site.tensor()
    axes = list(range(rank))
    first, second = site.get("dim0", 0) % rank, site.get("dim1", 1) % rank
    axes[first], axes[second] = axes[second], axes[first]
    return _permuted(site, axes)


def _matrix_transpose(site: Site) -> Result:
    rank = len(site.shape())
    return _permuted(site, [*range(rank - 2), rank - 1, rank - 2])


def _permute(site: Site) -> Result:
    rank = len(site.shape())
    return _permuted(site, [axis % rank for axis in site.get("dims")])


def _movedim(site: Site) -> Result:
    return site.b.op("slice", site.tensor(), name=site.name, shape=site.out.shape)


def _expand(site: Site) -> Result:
    return emit.expand(site.b, site.tensor(), site.out.shape, site.name)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten",
                     "_reshape_alias", "view_as", "ravel", "_reshape_copy"), _view),
    **dict.fromkeys(("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "diagonal",
                     "as_strided", "unfold", "view_as_real", "view_as_complex", "real", "imag", "_conj",
                     "tensor_split", "unsafe_split", "unsafe_chunk", "hsplit", "vsplit"), _part),
    **dict.fromkeys(("t", "transpose", "numpy_T"), _transpose),
    "mT": _matrix_transpose,
    "permute": _permute,
    "movedim": _movedim,
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_to": _expand,
}  # fmt: skip
