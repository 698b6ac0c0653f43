"""Deployments of deep models, worked out from shallow ones: layers that repeat add the same each time.

A model of 80 equal layers has the kernels of one of 4, each more often. Seconds and bytes are sums over kernels, so
those of the whole model lie on the line through a model of ``small`` and one of ``large`` layers. That the kernels do
repeat is checked against the whole model, once for each model; one that does not is built as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np

from roofline.counting.counts import kernels
from roofline.counting.memory import Memory
from roofline.frontends.source import Program, as_graph
from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph
from roofline.passes.fusion.fuse import fuse
from roofline.serving.deployment import Deployment
from roofline.serving.steps import StepTimes

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

    def line(self, small: Any, large: Any) -> Any:
        """Return the value of the whole model on the line through those of the two."""
        return small + (large - small) * ((self.whole - self.small) / (self.large - self.small))


@lru_cache(maxsize=64)
def depth_of(
    model: Hashable,
    dtype: str | None,
    options: tuple[tuple[str, Any], ...],
    stages: int,
) -> Depth | None:
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
        whole, layers = (
            _counts(model, dtype, options),
            _graph(model, dtype, options, "decode").info.layers or 0,
        )
        for depth in _depths(layers):
            one, other = (_counts(model, dtype, (*options, ("layers", n))) for n in (depth.small, depth.large))
            if _on_line(depth, one, other, whole) and _fused_alike(model, dtype, options, depth):
                return depth
    except RooflineError:  # a model without that option
        pass
    return None


def _depths(layers: int) -> Iterator[Depth]:
    """Yield pairs of shallow models, the shortest pattern of layers first."""
    for period in PERIODS:
        for small in range(LEAST, LEAST + STARTS):
            if small + period < layers and (layers - small) % period == 0:
                yield Depth(small, small + period, layers)


def _on_line(depth: Depth, small: Counter[Any], large: Counter[Any], whole: Counter[Any]) -> bool:
    same = small.keys() == large.keys() == whole.keys()
    return same and all(abs(depth.line(small[key], large[key]) - whole[key]) < 1e-6 for key in whole)


def _fused_alike(
    model: Hashable,
    dtype: str | None,
    options: tuple[tuple[str, Any], ...],
    depth: Depth,
) -> bool:
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
            sizes, flops = (
                tuple(sorted(kernel.sizes.items())),
                tuple(sorted(kernel.flops.items())),
            )
            key = (
                phase,
                kernel.main.op,
                kernel.main.attrs,
                sizes,
                kernel.stored,
                kernel.read,
                kernel.write,
                flops,
            )
            counts[key] += kernel.count
    return counts


@dataclass(frozen=True, repr=False)
class Deep(Deployment):
    """A deployment whose seconds and bytes lie on the line through those of two shallow ones.

    From :func:`deep`.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave what was worked out behind where it goes to another process."""
        return type(self), tuple(getattr(self, one.name) for one in fields(Deployment))

    @cached_property
    def _depth(self) -> Depth | None:
        return depth_of(cast(Hashable, self.model), self.dtype, self.options, self.pp)

    @cached_property
    def ends(self) -> tuple[Deployment, ...]:
        """The shallow deployments; the whole one where there are none."""
        own = {one.name: getattr(self, one.name) for one in fields(Deployment)}
        if self._depth is None:
            return (Deployment(**own),)
        layers = ({**dict(self.options), "layers": n} for n in (self._depth.small, self._depth.large))
        return tuple(Deployment(**{**own, "options": tuple(sorted(options.items()))}) for options in layers)

    def _line(self, values: Iterable[Any]) -> Any:
        values = tuple(values)
        return values[0] if self._depth is None else self._depth.line(*values)

    def steps(self, exact: bool = False) -> StepTimes:
        """Return the seconds of an engine step, as for any deployment."""
        return self._exact_line if exact else self._lined

    @cached_property
    def _lined(self) -> StepTimes:
        return self._on_line(exact=False)

    @cached_property
    def _exact_line(self) -> StepTimes:
        return self._on_line(exact=True)

    def _on_line(self, exact: bool) -> StepTimes:
        if self._depth is None:
            return self.ends[0].steps(exact)
        small, large = (end.programs for end in self.ends)
        beyond = (self._depth.whole - self._depth.large) / (self._depth.large - self._depth.small)
        return self.step_times(large, small, beyond, exact)

    def memory(self, stage: int = 0) -> Memory:
        """Return what a device of a stage needs without any cache [byte]."""
        every = [end.memory(stage).parts() for end in self.ends]
        return Memory(**{name: self._line(parts[name] for parts in every) for name in every[0]})

    def cache_bytes(self, context: Any) -> tuple[Any, Any]:
        """Return what a sequence takes on a device of the fullest stage, and what all share once [byte]."""
        each, once = self._line(np.asarray(end.cache_bytes(context)) for end in self.ends)
        return each, once


def deep(served: Deployment) -> Deep:
    """Return a deployment whose steps and memory come from shallow models, equal to its own up to rounding.

    Args:
        served: Of which nothing has to be built.

    Example:
        >>> from roofline.serving.deployment import deployment
        >>> served = deployment("llama-3-8b", "h100-sxm", tp=2)
        >>> times = [float(one.steps().decode(32, 4000)) for one in (served, deep(served))]
        >>> abs(times[0] / times[1] - 1) < 1e-12
        True
    """
    return Deep(**{one.name: getattr(served, one.name) for one in fields(Deployment)})
