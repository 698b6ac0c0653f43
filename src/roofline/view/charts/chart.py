"""The base of every chart: drawn only when shown or saved, and written whole or not at all.

A chart is one frozen dataclass in a file of its own, with ``drawing()``, which says its marks
(:mod:`roofline.view.charts.marks`), and, as every result, ``records()``.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import tempfile
import webbrowser
from abc import ABC, abstractmethod
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from roofline.ir.csvfile import csv_text
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.files import user_path, whole_file
from roofline.ir.report import Report, flat, plain
from roofline.ir.text import shown
from roofline.view.charts.marks import Drawing
from roofline.view.charts.paint import paint
from roofline.view.charts.spans import shares_x
from roofline.view.charts.style import RC, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = TypeVar("Result", bound=Report)
#: Formats by suffix, with the metadata that would make two equal charts differ switched off.
FORMATS: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".html": {},
    ".csv": {},
}


def checked_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a file that a chart is written to.

    Raises:
        UsageError: No format has it.
    """
    suffix = user_path(path).suffix.lower()
    if suffix not in FORMATS:
        hint = did_you_mean(suffix, FORMATS) if suffix else ""
        raise UsageError(f"{path}: unknown suffix {suffix!r}; allowed: {', '.join(FORMATS)}{hint}")
    return suffix


class Chart(Report, ABC):
    """What all charts share; its rows are the table behind the drawing."""

    __slots__ = ()
    #: A notebook shows the drawing, not the table.
    _repr_html_: ClassVar[Any] = None

    @abstractmethod
    def drawing(self) -> Drawing:
        """Return what is drawn, as marks."""

    def hints(self) -> dict[str, str]:
        """Return the tooltips of an SVG by the id of its group."""
        return self.drawing().hints()

    def on(self, ax: Any, dark: bool = False) -> Any:
        """Draw onto axes of your own and return them.

        Args:
            ax: Axes of matplotlib; one for each panel, from top to bottom, where the chart has several.
            dark: Whether their ground is dark.

        Raises:
            UsageError: Not as many axes as the chart has panels.
        """
        import matplotlib
        import numpy as np

        axes, drawing = list(np.ravel(np.asarray(ax, dtype=object))), self.drawing()
        if len(axes) != len(drawing.panels):
            name = type(self).__name__
            raise UsageError(f"{name} needs {len(drawing.panels)} axes, one for each panel; given {len(axes)}")
        with matplotlib.rc_context(settings(dark)):
            paint(axes, drawing, dark)
        return ax

    def figure(self, size: tuple[float, float] | None = None, dark: bool = False) -> Figure:
        """Draw a new figure, outside of pyplot.

        Args:
            size: Width and height [inch]; a hundred pixels per inch on screen.
            dark: Whether the ground is dark.
        """
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        drawing = self.drawing()
        heights = [panel.height for panel in drawing.panels]
        with matplotlib.rc_context(settings(dark)):
            figure = Figure(figsize=size or drawing.size, dpi=100, layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.subplots(len(heights), 1, sharex=shares_x(drawing), height_ratios=heights, squeeze=False)
            paint(list(axes[:, 0]), drawing, dark)
            figure.set_layout_engine("none")
        return figure

    def plotly(self, dark: bool = False) -> Any:
        """Draw for a browser: the same content, with hover texts and a legend that switches marks on and off.

        Returns:
            A ``plotly.graph_objects.Figure``.
        """
        from roofline.view.charts import interactive

        return interactive.figure(self.drawing(), dark)

    def render(
        self, suffix: str, size: tuple[float, float] | None = None, dpi: float = 200, dark: bool = False
    ) -> bytes:
        """Draw into bytes of a format; the same chart gives the same bytes.

        Args:
            suffix: ``.png``, ``.svg``, ``.pdf``, ``.html`` for a page that loads nothing, or ``.csv`` for the table
                behind the chart.
            size: Width and height [inch]; a page is as wide as its window.
            dpi: Pixels per inch of a PNG.
            dark: Whether the ground is dark.
        """
        import matplotlib

        if suffix == ".csv":
            return csv_text([flat(plain(row)) for row in self.records()]).encode()
        if suffix == ".html":
            from roofline.view.charts import interactive

            return interactive.html(self.drawing(), dark).encode()
        buffer = io.BytesIO()
        figure = self.figure(size, dark)
        with matplotlib.rc_context(settings(dark)):
            figure.savefig(buffer, format=suffix[1:], dpi=dpi, metadata=FORMATS[suffix])
        data = buffer.getvalue()
        return _with_hints(_with_widths(data.decode()), self.hints()).encode() if suffix == ".svg" else data

    def save(
        self,
        path: str | os.PathLike[str],
        size: tuple[float, float] | None = None,
        dpi: float = 200,
        dark: bool = False,
    ) -> None:
        """Write the chart to a file, whole or not at all.

        Args:
            path: The suffix picks the format: ``.png``, ``.svg``, ``.pdf``, or ``.html`` for an interactive page that
                loads nothing; ``.csv`` for the table behind the chart.
            size: Width and height [inch].
            dpi: Pixels per inch of a PNG.
            dark: Whether the ground is dark.

        Raises:
            UsageError: Another suffix, or a place that cannot be written.
        """
        suffix = checked_suffix(path)
        self._write(path, lambda: self.render(suffix, size, dpi, dark))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table behind the chart as CSV, whole or not at all."""
        self._write(path, lambda: self.render(".csv"))

    def _write(self, path: str | os.PathLike[str], data: Any) -> None:
        with whole_file(path, "wb") as stream:
            stream.write(data())

    def show(self) -> None:
        """Show the chart: in the notebook if this is one, else in the browser.

        Raises:
            UsageError: There is no browser.
        """
        shell: Any = sys.modules.get("IPython")
        if shell is not None and hasattr(shell.get_ipython(), "kernel"):
            importlib.import_module("IPython.display").display(self)
            return
        with tempfile.NamedTemporaryFile(prefix="roofline-", suffix=".svg", delete=False) as file:
            file.write(self.render(".svg"))
        if not webbrowser.open(Path(file.name).as_uri()):
            raise UsageError(f"no browser to show the chart in; it is in {file.name} (or use .save)")

    def _repr_png_(self) -> bytes:
        return self.render(".png", dpi=100)

    def _repr_svg_(self) -> str:
        return self.render(".svg").decode()


#: A text of an SVG: its style, its other attributes, and what it says.
_TEXT = re.compile(r'<text style="([^"]*)"([^>]*)>([^<]*)')


def _with_widths(svg: str) -> str:
    """Give each text of an SVG the width for which it was laid out, whichever font its reader has."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    def measured(match: re.Match[str]) -> str:
        style, rest, text = match.groups()
        size = re.search(r"font-size: ([\d.]+)px", style)
        if size is None or not text:
            return match[0]
        font = FontProperties(
            family=RC["font.sans-serif"][0], style="italic" if "italic" in style else "normal",
            weight="bold" if "font-weight: 700" in style else "normal", size=float(size[1]),
        )  # fmt: skip
        width = text_to_path.get_text_width_height_descent(unescape(text), font, False)[0]
        return f'<text textLength="{width:.2f}" lengthAdjust="spacingAndGlyphs" style="{style}"{rest}>{text}'

    return _TEXT.sub(measured, svg)


def _with_hints(svg: str, hints: dict[str, str]) -> str:
    """Add tooltips to the groups of an SVG."""

    def hinted(match: re.Match[str]) -> str:
        hint = hints.get(match[1])
        return f"{match[0]}<title>{escape(hint)}</title>" if hint else match[0]

    return re.sub(r'<g id="([\w-]+)">', hinted, svg)


@dataclass(frozen=True, eq=False, repr=False)
class ResultChart(Chart, ABC, Generic[Result]):
    """A chart of one result: it is of the same subject, with the same figures and rows.

    Attributes:
        result: What it shows.
        kind: Type of the result.
        made_by: What makes such results, for a reader whose own is none.

    Raises:
        UsageError: A result of another kind.
    """

    kind: ClassVar[type[Report]]
    made_by: ClassVar[str]

    result: Result

    def __post_init__(self) -> None:
        if not isinstance(self.result, self.kind):
            name = self.kind.__name__
            article = "" if name.endswith("s") else "an " if name[0] in "AEIO" else "a "
            raise UsageError(f"expected {article}{name} of {self.made_by}, given {shown(self.result)}")

    def subject(self) -> dict[str, Any]:
        """Return what the result is a result of."""
        return self.result.subject()

    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole."""
        return self.result.summary()

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the result."""
        return self.result.records()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.drawing().title}>"
