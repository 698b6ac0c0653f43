"""What each pass saved."""

from __future__ import annotations

from roofline.analysis.provenance import FIGURES, PassHistory
from roofline.ir.errors import UsageError
from roofline.ir.report import title
from roofline.ir.units import format_bytes, format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Mark, Panel, Rule
from roofline.view.charts.style import clean

#: Figures that are shown, each with its colour and what a reader calls it.
SHOWN = {
    "time_s": ("ink", "time"), "flops": ("compute", "FLOPs"), "bytes": ("memory", "traffic"),
    "memory_bytes": ("weights", "memory"),
}  # fmt: skip


class PassEffects(ResultChart[PassHistory]):
    """Figures before and after each pass, made by :func:`plot_passes`."""

    kind, made_by, schema = PassHistory, "rl.analysis.pass_history", "pass_effects"

    def drawing(self) -> Drawing:
        """Return a bar for each figure after each pass, against the program as it was given."""
        first, states = self.result.states[0], self.result.states
        shown = [name for name in SHOWN if first[name]]
        width = 0.8 / len(shown)
        marks: list[Mark] = [Rule(x=1.0, colour="soft", dash=True, label="as given")]
        longest = 1.0
        for number, name in enumerate(shown):
            colour, words = SHOWN[name]
            known = [at for at, state in enumerate(states) if state[name] is not None]
            ratios = [float(states[at][name]) / float(first[name]) for at in known]
            longest = max(longest, *ratios)
            texts = [_text(name, float(states[at][name])) for at in known]
            hover = [f"{words}: {text}, {ratio:.1%} of what it was" for text, ratio in zip(texts, ratios, strict=True)]
            places = [at + (number - (len(shown) - 1) / 2) * width for at in known]
            marks.append(Bars(places, ratios, 0.0, colour, words, texts, hover, width=0.9 * width))
        steps = (step.replace("(", " ").removesuffix(")").replace("'", "") for step in self.result.steps)
        names = ("as given", *(clean(step, 42) for step in steps))
        panel = Panel(tuple(marks), Axis("of the program as given", "%", low=0.0, high=1.16 * longest),
                      Axis(categories=names))  # fmt: skip
        size = (8.0, 1.6 + 0.24 * len(shown) * len(states))
        return Drawing((panel,), "What each pass saved", title(self.subject() | {"passes": []}), size=size)


def _text(name: str, value: float) -> str:
    unit = FIGURES[name]
    return format_bytes(value) if unit == "B" else format_si(value, unit)


def plot_passes(history: PassHistory) -> PassEffects:
    """Describe a chart of what each pass did to time, FLOPs, traffic and memory.

    Args:
        history: From :func:`roofline.analysis.pass_history`, best with a chip, which gives times.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No history, or one without a pass.

    Example:
        >>> import roofline as rl
        >>> small = rl.passes.cast(rl.model("gpt2", phase="decode"), weights="int8")
        >>> chart = plot_passes(rl.analysis.pass_history(small, "h100-sxm", batch=1, context=1024))
        >>> chart.records()[0]["bytes_ratio"] < 0.8
        True
    """
    chart = PassEffects(history)
    if not history.steps:
        raise UsageError(f"no pass was applied to {history.graph.name}; apply one of rl.passes first")
    return chart
