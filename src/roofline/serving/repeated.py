"""Deep models from shallow ones: layers that repeat add the same each time.

A model of 80 equal layers has the kernels of one of 4, each more often. Seconds and bytes are sums over kernels, so
those of the whole model lie on the line through a model of ``small`` and one of ``large`` layers. That the kernels do
repeat is checked against the whole model, once for each model; one that does not is built as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from roofline.counting.counts import kernels
from roofline.frontends.source import Program, as_graph
from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph
from roofline.passes.fusion.fuse import fuse

#: Layers after which a pattern of layers may come again, and layers of the smallest model that is looked at.
PERIODS, LEAST = (1, 2, 3, 4, 5, 6, 8), 2
#: Shallow models that are tried for each period: one may begin with layers of another kind.
STARTS = 8


@dataclass(frozen=True)
class Depth:
    """Two shallow models on whose line a deep one lies.

    Attributes:
        small: Layers of the one.
        large: Layers of the other.
        whole: Layers of the model.
    """

    small: int
    large: int
    whole: int

    @property
    def beyond(self) -> float:
        """Return how far behind the larger one the model lies, as a share of the way between the two."""
        return (self.whole - self.large) / (self.large - self.small)

    def line(self, small: Any, large: Any) -> Any:
        """Return the value of the whole model on the line through those of the two."""
        return large + (large - small) * self.beyond


@lru_cache(maxsize=64)
def depth_of(model: Hashable, dtype: str | None, options: tuple[tuple[str, Any], ...], stages: int) -> Depth | None:
    """Return the shallow models of a deep one; ``None`` where it has to be built as it is.

    Args:
        model: A name or a path.
        dtype: Number format of everything.
        options: Sizes and options of the model.
        stages: Stages of a pipeline, each of which has as many layers.

    Example:
        >>> depth_of("llama-3-70b", None, (), 1), depth_of("llama-3-70b", None, (), 2)
        (Depth(small=2, large=3, whole=80), Depth(small=4, large=6, whole=80))
    """
    if stages > 1:
        alone = depth_of(model, dtype, options, 1)
        if alone is None or alone.whole % stages:
            return None
        period, each = alone.large - alone.small, alone.whole // stages
        small = alone.small + (each - alone.small) % period
        return Depth(small * stages, (small + period) * stages, alone.whole) if small + period < each else None
    try:
        whole, layers = _counts(model, dtype, options), layers_of(model, dtype, options)
        for depth in _depths(layers):
            one, other = (_counts(model, dtype, (*options, ("layers", n))) for n in (depth.small, depth.large))
            if _on_line(depth, one, other, whole) and _fused_alike(model, dtype, options, depth):
                return depth
    except RooflineError:  # a model without that option
        pass
    return None


def layers_of(model: Hashable, dtype: str | None, options: tuple[tuple[str, Any], ...]) -> int:
    """Return the layers of a model; 0 where it does not say."""
    return _graph(model, dtype, options, "decode").info.layers or 0


def _depths(layers: int) -> Iterator[Depth]:
    """Yield pairs of shallow models, the shortest pattern of layers first."""
    for period in PERIODS:
        for small in range(LEAST, LEAST + STARTS):
            if small + period < layers and (layers - small) % period == 0:
                yield Depth(small, small + period, layers)


def _on_line(depth: Depth, small: Counter[Any], large: Counter[Any], whole: Counter[Any]) -> bool:
    same = small.keys() == large.keys() == whole.keys()
    return same and all(abs(depth.line(small[key], large[key]) - whole[key]) < 1e-6 for key in whole)


def _fused_alike(model: Hashable, dtype: str | None, options: tuple[tuple[str, Any], ...], depth: Depth) -> bool:
    """Tell whether fusion across layers makes the same kernels of both shallow models."""
    return all(
        len({
            len(kernels(fuse(_graph(model, dtype, (*options, ("layers", layers)), phase), "inductor")))
            for layers in (depth.small, depth.large)
        }) == 1
        for phase in ("decode", "prefill")
    )  # fmt: skip


@lru_cache(maxsize=256)
def _graph(model: Hashable, dtype: str | None, options: tuple[tuple[str, Any], ...], phase: str) -> Graph:
    return as_graph(cast(Program, model), None, dtype, implied=phase, **dict(options))


@lru_cache(maxsize=256)
def _counts(model: Hashable, dtype: str | None, options: tuple[tuple[str, Any], ...]) -> Counter[Any]:
    """Return how often each distinct kernel of both phases runs."""
    counts: Counter[Any] = Counter()
    for phase in ("decode", "prefill"):
        for kernel in kernels(_graph(model, dtype, options, phase)):
            sizes, flops = tuple(sorted(kernel.sizes.items())), tuple(sorted(kernel.flops.items()))
            key = (phase, kernel.main.op, kernel.main.attrs, sizes, kernel.stored, kernel.read, kernel.write, flops)
            counts[key] += kernel.count
    return counts
