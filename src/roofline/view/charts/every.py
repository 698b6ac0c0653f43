"""The charts of every result, by name: what ``--plot`` draws, and a page can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from roofline.analysis.batches import BatchChoice
from roofline.analysis.chip_sweep import FigureSweep
from roofline.analysis.comparison import Comparison
from roofline.analysis.engines.timeline import EngineTimeline
from roofline.analysis.estimates import Estimate
from roofline.analysis.provenance import PassHistory
from roofline.analysis.scale_out import Scaling
from roofline.analysis.schedules import Schedules
from roofline.analysis.training import TrainingStep
from roofline.analysis.validation import Validation
from roofline.analysis.varied.variation import Variation
from roofline.codesign.search import CoDesign
from roofline.diagnosis.causes import Verdict
from roofline.diagnosis.op_times import OpVerdicts
from roofline.diagnosis.ranks import RanksReport
from roofline.diagnosis.report import TraceReport
from roofline.diagnosis.stages import Pipeline
from roofline.diagnosis.sweep import SweepVerdict
from roofline.diagnosis.trace_diff import TraceDiff
from roofline.fleet.results import Fleet
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.text import shown
from roofline.measurement.tuning.tune import Tuning
from roofline.optimization.optimize import Optimization
from roofline.planning.memory import MemoryPlan
from roofline.quant.bit_widths import BitWidths
from roofline.serving.cache_policies import CachePolicies
from roofline.serving.plans.planning import Plan
from roofline.serving.requests import Request
from roofline.serving.service import Service
from roofline.serving.simulation.result import Simulation
from roofline.traces.events import Trace
from roofline.view.charts.accuracy import plot_predictions
from roofline.view.charts.bit_widths import plot_bit_widths
from roofline.view.charts.cache_policies import plot_cache_policies
from roofline.view.charts.chart import Chart
from roofline.view.charts.chip_sweep import plot_figures
from roofline.view.charts.chips import plot_comparison, plot_elasticity
from roofline.view.charts.codesign import plot_codesign
from roofline.view.charts.fleet import plot_fleet
from roofline.view.charts.layers import plot_layers
from roofline.view.charts.measured_sweep import plot_sweep
from roofline.view.charts.memory import plot_memory, plot_memory_over_time
from roofline.view.charts.memory_plan import plot_memory_plan
from roofline.view.charts.optimization import plot_optimization
from roofline.view.charts.pareto import plot_pareto
from roofline.view.charts.passes import plot_passes
from roofline.view.charts.plan import plot_plan
from roofline.view.charts.ranks import plot_ranks
from roofline.view.charts.requests import plot_request
from roofline.view.charts.roof import Roofline, plot_roofline
from roofline.view.charts.scaling import plot_scaling
from roofline.view.charts.schedules import plot_schedules
from roofline.view.charts.service import plot_service
from roofline.view.charts.simulation import plot_simulation
from roofline.view.charts.sweep import plot_batch
from roofline.view.charts.timeline import plot_timeline
from roofline.view.charts.trace_diff import plot_diff
from roofline.view.charts.trace_memory import plot_trace_memory
from roofline.view.charts.training import plot_step
from roofline.view.charts.tuning import plot_tuning
from roofline.view.charts.variation import plot_variation
from roofline.view.charts.waterfall import plot_verdict

Plot = Callable[[Any], Chart]


def _measured(verdict: Verdict) -> Roofline:
    return plot_roofline(verdict.estimate, measured=verdict.measured)


def _of_stage(plot: Plot) -> Plot:
    """Return a chart of what the first device of a step of training runs of a micro-batch."""
    return lambda step: plot(step.virtual_stages[0].estimate)


#: Charts of an estimate of one point, over batches alone, and over anything else.
_POINT: dict[str, Plot] = {
    "roofline": plot_roofline, "layers": plot_layers, "memory": plot_memory,
    "memory-over-time": plot_memory_over_time, "timeline": plot_timeline,
}  # fmt: skip
_BATCHES: dict[str, Plot] = {"batch": plot_batch, "pareto": plot_pareto, "memory": plot_memory}
_POINTS: dict[str, Plot] = {"pareto": plot_pareto, "memory": plot_memory}
#: Charts of every other result by its type, the usual one first.
_CHARTS: tuple[tuple[type, dict[str, Plot]], ...] = (
    (BatchChoice, {"batch": plot_batch, "pareto": plot_pareto}),
    (Comparison, {"chips": plot_comparison, "elasticity": plot_elasticity, "pareto": plot_pareto}),
    (EngineTimeline, {"timeline": plot_timeline}),
    (Variation, {"times": plot_variation}),
    (FigureSweep, {"sweep-chip": plot_figures}),
    (Scaling, {"scaling": plot_scaling}),
    (Schedules, {"schedules": plot_schedules}),
    (Service, {"service": plot_service}),
    (Plan, {"plan": plot_plan}),
    (Request, {"request": plot_request, "memory": plot_memory}),
    (Simulation, {"server": plot_simulation}),
    (CachePolicies, {"cache": plot_cache_policies}),
    (
        TrainingStep,
        {
            "step": plot_step,
            "memory": plot_memory,
            "layers": _of_stage(plot_layers),
            "timeline": _of_stage(plot_timeline),
        },
    ),
    (MemoryPlan, {"places": plot_memory_plan}),
    (Optimization, {"steps": plot_optimization}),
    (PassHistory, {"passes": plot_passes}),
    (Pipeline, {"passes": lambda way: plot_passes(way.history)}),
    (Verdict, {"verdict": plot_verdict, "roofline": _measured}),
    (TraceReport, {"verdict": plot_verdict, "roofline": plot_roofline, "memory": plot_trace_memory}),
    (TraceDiff, {"changes": plot_diff}),
    (RanksReport, {"ranks": plot_ranks}),
    (Trace, {"timeline": plot_timeline}),
    (SweepVerdict, {"sweep": plot_sweep}),
    (OpVerdicts, {"predictions": plot_predictions}),
    (Validation, {"predictions": plot_predictions}),
    (Tuning, {"tuning": plot_tuning}),
    (BitWidths, {"bit-widths": plot_bit_widths}),
    (Fleet, {"fleet": plot_fleet}),
    (CoDesign, {"front": plot_codesign}),
)


def charts_of(*results: Any) -> Mapping[str, Callable[[], Chart]]:
    """Return what makes each chart of a result by its name, the usual one first.

    Args:
        results: An estimate, a comparison, a verdict, or any other result; several that are about the same thing, such
            as the report of a trace and the trace.

    Returns:
        Functions without arguments; a chart that a result has not raises when it is made, and says why.

    Raises:
        UsageError: A result without a chart.

    Example:
        >>> import roofline as rl
        >>> list(charts_of(rl.estimate("gpt2", "h100-sxm", phase="decode", batch=8, context=512)))
        ['roofline', 'layers', 'memory', 'memory-over-time', 'timeline']
    """
    charts: dict[str, Callable[[], Chart]] = {}
    for result in results:
        for name, plot in _of(result).items():
            charts.setdefault(name, partial(plot, result))
    return charts


def plot(result: Any, chart: str | None = None) -> Chart:
    """Describe a chart of any result: the usual one, or another of its charts by name.

    Args:
        result: An estimate, a comparison, a verdict, or any other result.
        chart: One of :func:`charts_of`; the first of them when absent.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: A result without a chart, or none of that name.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("gpt2", "h100-sxm", phase="decode", batch=8, context=512)
        >>> plot(est, "memory")
        <MemoryParts of gpt2: 1.78 GiB>
    """
    return named(charts_of(result), chart)


def named(charts: Mapping[str, Callable[[], Chart]], name: str | None, option: str = "chart") -> Chart:
    """Return the chart of a name, the first where there is none.

    Raises:
        UsageError: There is none of that name; names those that there are.
    """
    if name is not None and not (isinstance(name, str) and name in charts):
        raise UsageError(f"{option} {shown(name)}: allowed: {', '.join(charts)}{did_you_mean(str(name), charts)}")
    return charts[name or next(iter(charts))]()


def _of(result: Any) -> dict[str, Plot]:
    if isinstance(result, Estimate):
        return _POINT if not result.shape else _BATCHES if result.axis_names == ("B",) else _POINTS
    plots = next((plots for kind, plots in _CHARTS if isinstance(result, kind)), None)
    if plots is None:
        raise UsageError(f"{type(result).__name__} has no chart; results of rl.estimate, rl.compare and others have")
    return plots
