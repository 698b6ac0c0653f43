"""Structured pruning of real weights: which heads and channels go, by how little they matter.

Which sizes shrink together, and to what, is what :func:`roofline.passes.prune` works out of the program; this says
which of their indices stay and slices every weight that has them. Scores of an index, over all weights that go with it
(Fang et al. 2023, "DepGraph", arXiv 2301.12900):

- ``weight``: the sum of the squares of its weights (Li et al. 2016, arXiv 1608.08710, by L1; He et al. 2018,
  "Soft filter pruning", arXiv 1808.06866, by L2);
- ``activation``: of the matrices that sum over it, the squares of its weights times the mean square of what they are
  multiplied by (Sun et al. 2023, "Wanda", arXiv 2306.11695; by channel: An et al. 2023, "FLAP", arXiv 2312.11983);
- ``taylor``: the square of the sum of gradient times weight, which is what the loss changes by to first order, added up
  over batches (Molchanov et al. 2019, arXiv 1906.10771, equations 8 and 9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from roofline.frontends.torch import from_torch
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import Report, subject
from roofline.ir.sizes import one_of
from roofline.ir.text import shown
from roofline.ops.registry import OPS, Array
from roofline.passes.parallel.axes import Atom, Axes, Span
from roofline.passes.rewriting.prune import prune as prune_graph
from roofline.passes.rewriting.prune import shrinking
from roofline.quant.arrays import finite
from roofline.quant.observing import copied, hooked, is_convolution, kind_of, layers_of, resting, weight_of

By = Literal["weight", "activation", "taylor"]


@dataclass(frozen=True, slots=True)
class PrunedAxis:
    """A size that shrank, everywhere at once.

    Attributes:
        where: The first axis that has it, such as ``layers.0.up.weight[0]``.
        size: What it was.
        indices: The indices that stay, ascending.
        lost: Share of all scores that goes.
        tensors: The weights that shrink with it.
    """

    where: str
    size: int
    indices: Array
    lost: float
    tensors: tuple[str, ...]


@dataclass(frozen=True, repr=False, eq=False)
class Pruned(Report):
    """A network without the parts that matter least, from :func:`roofline.quant.prune`.

    Attributes:
        module: The smaller network, with weights of its own, ready to be trained on.
        graph: The program before.
        smaller: The program after: a call of :func:`roofline.passes.prune` that can be repeated.
        by: How parts were scored.
        axes: What shrank.
    """

    schema = "pruned"

    module: Any
    graph: Graph
    smaller: Graph
    by: str
    axes: tuple[PrunedAxis, ...]

    def subject(self) -> dict[str, Any]:
        """Return which program became smaller, and by what."""
        return {**subject(self.smaller), "by": self.by}

    def summary(self) -> dict[str, Any]:
        """Return the parameters before and after."""
        return {"parameters_before": self.graph.parameters, "parameters": self.smaller.parameters}

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each size that shrank."""
        return [
            {"axis": axis.where, "size": axis.size, "kept": len(axis.indices), "lost_share": axis.lost,
             "tensors": list(axis.tensors)}
            for axis in self.axes
        ]  # fmt: skip

    def __str__(self) -> str:
        head = f"{self.graph.name}, by {self.by}: {self.graph.parameters:,} -> {self.smaller.parameters:,} parameters"
        rows = [
            f"  {axis.where}: {len(axis.indices)} of {axis.size}, {axis.lost:.1%} of the score goes"
            for axis in self.axes
        ]
        return "\n".join((head, *rows))

    __repr__ = __str__


def prune(
    module: Any,
    *args: Any,
    by: By = "weight",
    loss: Callable[[Any], Any] | None = None,
    heads: float | None = None,
    channels: float | None = None,
    hidden: float | None = None,
    where: str | Sequence[str] = "*",
    unit: int = 1,
) -> Pruned:
    """Take the heads, channels or widths that matter least out of a PyTorch module.

    Amounts and patterns are those of :func:`roofline.passes.prune`; every layer gives up the same share.

    Args:
        module: A ``torch.nn.Module``. Its ``forward`` must not hold sizes of its own (``unflatten(-1, (-1, width))``
            instead of a number of heads). It stays as it is.
        args: Example arguments; for ``activation``, what it is calibrated with.
        by: How parts are scored: ``weight``, ``activation`` or ``taylor``.
        loss: For ``taylor``: from the module to a loss that can be differentiated, or to one for each batch.
        heads: Query heads of each attention: a share that goes, or how many stay.
        channels: Inner channels of feed-forwards, channels of convolutions.
        hidden: Width of the residual stream.
        where: Patterns over node names.
        unit: Kept channels and widths are rounded down to a multiple of this.

    Returns:
        The smaller module, with the program before and after and what went.

    Raises:
        MissingExtra: PyTorch is not installed.
        UsageError: As :func:`roofline.passes.prune`; ``taylor`` without a loss; a forward that holds sizes of its own.

    Example:
        >>> import torch
        >>> from roofline.quant import prune
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> small = prune(net, torch.zeros(4, 8), channels=0.25)
        >>> small.module[0], small.smaller.parameters
        (Linear(in_features=8, out_features=12, bias=True), 134)
    """
    one_of("by", by, get_args(By))
    every = {"heads": heads, "channels": channels, "hidden": hidden}
    amounts = {what: amount for what, amount in every.items() if amount is not None}
    with resting(module):
        graph = from_torch(module, *args)
    smaller = prune_graph(graph, **amounts, where=where, unit=unit)
    axes, sizes = shrinking(graph, amounts, where, unit)
    weights = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items() if name in graph.tensors}
    batches = list(_batches(by, module, args, loss, graph, weights))
    less = {atom: size for atom, size in sizes.items() if size < _size(atom)}
    rows = tuple(_row(axes, atom, size, batches, weights, by) for atom, size in less.items())
    indices = {atom: row.indices for atom, row in zip(less, rows, strict=True)}
    small = copied(module)
    _slice(small, {name: _indices(axes.spans(name), indices) for name in weights}, smaller)
    _check_runs(small, args)
    return Pruned(small, graph, smaller, by, rows)


# --- which stay ------------------------------------------------------------------------------------------------------


def _row(
    axes: Axes, atom: Atom, size: int, batches: Sequence[Mapping[str, Array]], weights: Mapping[str, Array], by: By
) -> PrunedAxis:
    scores = np.zeros(_size(atom))
    for elements in batches:
        sums = [_by_index(axes.spans(name), atom, elements[name], by) for name in elements]
        scores += np.sum(sums, 0) ** (2 if by == "taylor" else 1)
    finite(scores, f"prune: scores along {atom.where}")
    indices = np.sort(np.argsort(-scores, kind="stable")[:size])
    lost = 1 - float(scores[indices].sum() / (scores.sum() or 1.0))
    names = tuple(dict.fromkeys(name for name, _ in axes.users(atom) if name in weights))
    return PrunedAxis(atom.where, _size(atom), indices, lost, names)


def _by_index(spans: Sequence[Span], atom: Atom, elements: Array, by: By) -> Array:
    """Sum what belongs to each index of an atom over all axes of a tensor that contain it, or those that read it."""
    total = np.zeros(_size(atom))
    for axis, span in enumerate(spans):
        if atom in span.atoms and (by != "activation" or axis == 1):
            index = positions(span)[atom]
            along = elements.sum(tuple(other for other in range(elements.ndim) if other != axis))
            np.add.at(total, index[index >= 0], along[index >= 0])
    return total


def positions(span: Span) -> dict[Atom, Array]:
    """Tell which index of each of its atoms every index of an axis is; -1 in segments without the atom."""
    if span.kind == "sum":
        parts = [positions(_span(part)) for part in span.parts]
        return {
            atom: np.concatenate(
                [own.get(atom, np.full(_size(part), -1)) for own, part in zip(parts, span.parts, strict=True)]
            )
            for atom in span.atoms
        }
    index = np.arange(_size(span))
    places: dict[Atom, Array] = {}
    for part in reversed(span.parts):
        index, inner = np.divmod(index, _size(part))
        places |= (
            {atom: own[inner] for atom, own in positions(_span(part)).items()}
            if isinstance(part, Span)
            else {part: inner}
        )
    return places


def _size(of: Span | Atom) -> int:
    assert isinstance(of.size, int)
    return of.size


def _span(part: Span | Atom) -> Span:
    return part if isinstance(part, Span) else Span("product", (part,), part.size)


def _indices(spans: Sequence[Span], indices: Mapping[Atom, Array]) -> tuple[Array, ...]:
    """List the indices of each axis of a tensor that stay."""
    chosen = []
    for span in spans:
        here = [(indices[atom], index) for atom, index in positions(span).items() if atom in indices]
        gone = sum((index >= 0) & ~np.isin(index, stays) for stays, index in here)
        chosen.append(np.flatnonzero(gone + np.zeros(_size(span)) == 0))
    return tuple(chosen)


# --- scores ----------------------------------------------------------------------------------------------------------


def _batches(
    by: By, module: Any, args: Sequence[Any], loss: Callable[[Any], Any] | None, graph: Graph,
    weights: Mapping[str, Array],
) -> Iterator[dict[str, Array]]:  # fmt: skip
    """Yield what each element of each weight adds to the scores of its indices; for ``taylor`` batch by batch."""
    if by == "taylor":
        losses = loss(module) if callable(loss) else None
        for one in losses if isinstance(losses, Iterable) and not hasattr(losses, "backward") else [losses]:
            if not hasattr(one, "backward"):
                raise UsageError("by='taylor' needs loss=, a function from the module to a loss that can be "
                                 f"differentiated, or to several; not {shown(loss)}, to {shown(one)}")  # fmt: skip
            yield _taylor(module, one, weights)
        return
    squares = _mean_squares(module, args) if by == "activation" else {}
    summed = {node.inputs[1] for node in graph.nodes if OPS[node.op].kind in ("matmul", "conv")}
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    yield {
        name: weight.astype(np.float64) ** 2 * (squares[name].reshape(-1, *[1] * (weight.ndim - 2)) if squares else 1)
        for name, weight in weights.items()
        if name in (summed & squares.keys() if squares else parameters)
    }


def _taylor(module: Any, loss: Any, weights: Mapping[str, Array]) -> dict[str, Array]:
    module.zero_grad()
    loss.backward()
    scores = {
        name: (weight.grad * weight).detach().double().numpy()
        for name, weight in module.named_parameters()
        if name in weights and weight.grad is not None
    }
    module.zero_grad()
    return scores


def _mean_squares(module: Any, args: Sequence[Any]) -> dict[str, Array]:
    """Mean square of each channel that linear layers and convolutions read, by the name of their weight."""
    totals: dict[str, Array] = {}
    counts: dict[str, int] = {}
    layers = {name: uses for name, uses in layers_of(module).items()
              if kind_of(uses[0]) != "Conv1D" and getattr(uses[0], "groups", 1) == 1}  # fmt: skip

    def look(name: str, layer: Any, read: Any) -> None:
        moved = read.detach().double().movedim(1 if is_convolution(layer) else -1, 0).flatten(1)
        totals[name] = totals.get(name, 0.0) + moved.square().sum(1).numpy()
        counts[name] = counts.get(name, 0) + moved.shape[1]

    with hooked(module, layers, look):
        module(*args)
    return {weight_of(name): total / counts[name] for name, total in totals.items()}


# --- the smaller module ----------------------------------------------------------------------------------------------

#: What layers note of the sizes of their weights: the attribute, and the axis of the weight that it is.
_NOTED = {
    "Linear": {"out_features": 0, "in_features": 1}, "Embedding": {"num_embeddings": 0, "embedding_dim": 1},
    "Conv1d": {"out_channels": 0, "in_channels": 1}, "Conv2d": {"out_channels": 0, "in_channels": 1},
    "Conv3d": {"out_channels": 0, "in_channels": 1}, "BatchNorm1d": {"num_features": 0},
    "BatchNorm2d": {"num_features": 0}, "BatchNorm3d": {"num_features": 0},
}  # fmt: skip


def _slice(module: Any, indices: Mapping[str, Sequence[Array]], smaller: Graph) -> None:
    """Leave of each parameter and buffer what stays; what several layers share, they go on sharing."""
    import torch

    groups = {
        node.inputs[1]: dict(node.attrs).get("groups", 1) for node in smaller.nodes if OPS[node.op].kind == "conv"
    }
    whole = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    made = {id(whole[name]): _taken(whole[name], axes, torch) for name, axes in indices.items()}
    for path, layer in module.named_modules():
        for own in (layer._parameters, layer._buffers):
            own.update({key: made[id(tensor)] for key, tensor in own.items() if id(tensor) in made})
        _note(layer, groups.get(f"{path}.weight" if path else "weight", 1))


def _taken(tensor: Any, indices: Sequence[Array], torch: Any) -> Any:
    data = tensor.detach()
    for axis, index in enumerate(indices):
        data = data.index_select(axis, torch.as_tensor(index))
    return torch.nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else data


def _note(layer: Any, groups: int) -> None:
    """Let a layer say the sizes that it has now."""
    for attribute, axis in _NOTED.get(type(layer).__name__, {}).items():
        if layer.weight is not None:
            setattr(layer, attribute, layer.weight.shape[axis] * (groups if attribute == "in_channels" else 1))
    if hasattr(layer, "groups"):
        layer.groups = groups
    if type(layer).__name__ == "LayerNorm" and layer.weight is not None:
        layer.normalized_shape = tuple(layer.weight.shape)


def _check_runs(module: Any, args: Sequence[Any]) -> None:
    import torch

    try:
        with resting(module), torch.no_grad():
            module(*args)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"{type(module).__name__} does not run on its smaller weights ({str(error).splitlines()[0]}): its forward "
            "holds a size of its own; take it from the weights, as in unflatten(-1, (-1, width))"
        ) from error
