"""What a plan does, step by step: passes by name with plain options, and how the program runs.

The same steps on the same program give the same graph: that is what a plan file is read for. Only passes of
:data:`PASSES` have a step, and only with options that a file can hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roofline.analysis.scale_out import with_topology
from roofline.frontends.source import Program, as_graph
from roofline.hardware.cluster import Cluster
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, check_graph
from roofline.ir.text import shown
from roofline.passes.formats.autocast import autocast
from roofline.passes.formats.cast import cast
from roofline.passes.formats.quantize import dequantize, formats_by_name, quantize
from roofline.passes.fusion.fuse import fuse, unfuse
from roofline.passes.parallel.shard import shard
from roofline.passes.rewriting.batchnorm import fold_batchnorm
from roofline.passes.rewriting.clean import clean
from roofline.passes.rewriting.layouts import layout
from roofline.passes.rewriting.linears import merge_linears
from roofline.passes.rewriting.prune import prune

Pass = Callable[..., Graph]
#: Passes that a step may name.
PASSES: Mapping[str, Pass] = {
    each.__name__: each
    for each in (autocast, cast, clean, dequantize, fold_batchnorm, fuse, layout, merge_linears, prune, quantize,
                 shard, unfuse)
}  # fmt: skip
#: The step that is no pass: options of :func:`roofline.estimate`, or of :func:`roofline.training.train`.
RUN = "run"
#: What it may say.
SETTINGS = ("mode", "tf32", "regime", "batch", "precision", "recompute", "micro_batch", "tp", "dp", "zero", "sp")
#: The longest text, list and plan.
MAX_TEXT, MAX_LIST, MAX_STEPS = 4096, 4096, 256


@dataclass(frozen=True, slots=True)
class Step:
    """A pass with its options, or ``run`` with settings of the run.

    Part of what :func:`roofline.optimize` returns.

    Attributes:
        name: One of :data:`PASSES`, or ``run``.
        options: Its keywords, as sorted pairs; formats of weights by pattern are text, as on the command line.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, name: str, **options: Any) -> Step:
        """Return a step, refused where no such pass takes such options.

        Raises:
            UsageError: An unknown pass or option, or a value that no file could hold.

        Example:
            >>> Step.of("quantize", weights="int8"), Step.of("run", mode="graph")
            (quantize(weights='int8'), run(mode='graph'))
        """
        allowed = (*PASSES, RUN)
        if name not in allowed:
            near = did_you_mean(str(name), allowed)
            raise UsageError(f"no step is called {shown(name)}; allowed: {', '.join(allowed)}{near}")
        known = SETTINGS if name == RUN else tuple(inspect.signature(PASSES[name]).parameters)[1:]
        for key, value in options.items():
            if key not in known:
                raise UsageError(f"{name} has no option {shown(key)}; allowed: {', '.join(known) or 'none'}")
            if not _plain(value):
                raise UsageError(f"{name}: {key}={shown(value)}: expected a number, a word or a list of them")
        pairs = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        return cls(name, tuple(sorted(pairs.items())))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.options)})"

    def record(self) -> dict[str, Any]:
        """Return it as one table of plain types."""
        return {"step": self.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in self.options}}


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= MAX_LIST and all(isinstance(item, str | int | float) and _plain(item) for item in value)
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)


@dataclass(frozen=True, slots=True)
class State:
    """A program on its way through a plan.

    From :func:`roofline.optimization.replay`.

    Attributes:
        graph: The program as it is now.
        run: How it runs: keywords of :func:`roofline.estimate`, or of :func:`roofline.training.train`.
        steps: What has been done.
    """

    graph: Graph
    run: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


def applied(state: State, step: Step, cluster: Cluster | None = None) -> State:
    """Take one step.

    Raises:
        UsageError: As the pass does.
    """
    steps = (*state.steps, step)
    options = dict(step.options)
    if step.name == RUN:
        return replace(state, run={**state.run, **options}, steps=steps)
    if step.name == "quantize" and isinstance(options.get("weights"), str):
        options["weights"] = formats_by_name(options["weights"])
    graph = PASSES[step.name](state.graph, **options)
    if step.name == "shard" and cluster is not None:
        graph = with_topology(graph, cluster, options.get("tp", 1))
    return replace(state, graph=graph, steps=steps)


def replay(program: Program, steps: Iterable[Step], *, cluster: Cluster | None = None) -> State:
    """Apply the steps of a plan to a program.

    Args:
        program: A graph, or what ``as_graph`` takes; the plan's own program for the plan's own result.
        steps: As :attr:`roofline.optimization.Plan.steps` has them.
        cluster: Where the devices of a sharded program are.

    Returns:
        The graph, and the settings of its run.

    Raises:
        UsageError: A step that does not apply; says which.

    Example:
        >>> state = replay("gpt2", [Step.of("quantize", weights="int8"), Step.of("run", mode="graph")])
        >>> state.graph.history, dict(state.run)
        ((quantize(weights='int8'),), {'mode': 'graph'})
    """
    state = State(as_graph(program))
    check_graph(state.graph, "replay")
    for at, step in enumerate(steps, 1):
        try:
            state = applied(state, step, cluster)
        except UsageError as error:
            raise UsageError(f"step {at}, {step!r}: {error}") from None
    return state
