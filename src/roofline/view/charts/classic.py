"""Charts that draw by matplotlib alone."""

from __future__ import annotations

from typing import Any, ClassVar

from roofline.ir.errors import UsageError
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Drawing, Panel
from roofline.view.charts.style import settings


class Classic(Chart):
    """A chart with a ``draw`` of its own."""

    default_size: ClassVar[tuple[float, float]] = (8.0, 5.4)
    panels: ClassVar[tuple[float, ...]] = (1.0,)

    def drawing(self) -> Drawing:
        """Return panels without marks."""
        return Drawing(tuple(Panel((), height=height) for height in self.panels), size=self.default_size)

    def draw(self, ax: Any) -> None:
        """Draw."""

    def hints(self) -> dict[str, str]:
        """Return tooltips."""
        return {}

    def on(self, ax: Any, dark: bool = False) -> Any:
        """Draw onto axes."""
        import matplotlib
        import numpy as np

        axes = list(np.ravel(np.asarray(ax, dtype=object)))
        if len(axes) != len(self.panels):
            name = type(self).__name__
            raise UsageError(f"{name} needs {len(self.panels)} axes, one for each panel; given {len(axes)}")
        with matplotlib.rc_context(settings(dark)):
            self.draw(axes[0] if len(axes) == 1 else axes)
        return ax

    def figure(self, size: tuple[float, float] | None = None, dark: bool = False) -> Any:
        """Draw a new figure."""
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        with matplotlib.rc_context(settings(dark)):
            figure = Figure(figsize=size or self.default_size, dpi=100, layout="constrained")
            FigureCanvasAgg(figure)
            self.on(figure.subplots(len(self.panels), 1, sharex=True, height_ratios=self.panels), dark)
            figure.set_layout_engine("none")
        return figure
