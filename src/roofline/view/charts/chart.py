"""The base of every chart: drawn only when shown or saved, and written whole or not at all.

A chart is one frozen dataclass in a file of its own, with ``draw(ax)`` and, as every result, ``records()``; colours,
ticks and labels come from :mod:`roofline.view.charts.style` and :mod:`roofline.view.charts.labels`.
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
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from roofline.ir.csvfile import csv_text
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.files import user_path, whole_file
from roofline.ir.report import Report, flat, plain
from roofline.view.charts.style import RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Formats by suffix, with the metadata that would make two equal charts differ switched off.
FORMATS: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class Chart(Report, ABC):
    """What all charts share; its rows are the table behind the drawing."""

    __slots__ = ()
    #: Width and height of the figure [inch].
    default_size: ClassVar[tuple[float, float]] = (8.0, 5.4)
    #: Relative heights of its panels, from top to bottom.
    panels: ClassVar[tuple[float, ...]] = (1.0,)
    #: A notebook shows the drawing, not the table.
    _repr_html_: ClassVar[Any] = None

    @abstractmethod
    def draw(self, ax: Any) -> None:
        """Draw onto axes, or onto a list of them from top to bottom if the chart has several panels."""

    def hints(self) -> dict[str, str]:
        """Return the tooltips of an SVG by the id of its group."""
        return {}

    def on(self, ax: Any) -> Any:
        """Draw onto axes of your own and return them.

        Args:
            ax: Axes of matplotlib; one for each panel, from top to bottom, where the chart has several.

        Raises:
            UsageError: Not as many axes as the chart has panels.
        """
        import matplotlib
        import numpy as np

        axes = list(np.ravel(np.asarray(ax, dtype=object)))
        if len(axes) != len(self.panels):
            name = type(self).__name__
            raise UsageError(f"{name} needs {len(self.panels)} axes, one for each panel; given {len(axes)}")
        with matplotlib.rc_context(RC):
            self.draw(axes[0] if len(axes) == 1 else axes)
        return ax

    def figure(self, size: tuple[float, float] | None = None) -> Figure:
        """Draw a new figure, outside of pyplot.

        Args:
            size: Width and height [inch]; a hundred pixels per inch on screen.
        """
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        with matplotlib.rc_context(RC):
            figure = Figure(figsize=size or self.default_size, dpi=100, layout="constrained")
            FigureCanvasAgg(figure)
            self.on(figure.subplots(len(self.panels), 1, sharex=True, height_ratios=self.panels))
            figure.set_layout_engine("none")
        return figure

    def render(self, suffix: str, size: tuple[float, float] | None = None, dpi: float = 200) -> bytes:
        """Draw into bytes of a format; the same chart gives the same bytes.

        Args:
            suffix: ``.png``, ``.svg`` or ``.pdf``.
            size: Width and height [inch].
            dpi: Pixels per inch of a PNG.
        """
        import matplotlib

        buffer = io.BytesIO()
        figure = self.figure(size)
        with matplotlib.rc_context(RC):
            figure.savefig(buffer, format=suffix[1:], dpi=dpi, metadata=FORMATS[suffix])
        data = buffer.getvalue()
        return _with_hints(data.decode(), self.hints()).encode() if suffix == ".svg" else data

    def save(self, path: str | os.PathLike[str], size: tuple[float, float] | None = None, dpi: float = 200) -> None:
        """Write the chart to a file, whole or not at all.

        Args:
            path: The suffix picks the format: ``.png``, ``.svg`` or ``.pdf``.
            size: Width and height [inch].
            dpi: Pixels per inch of a PNG.

        Raises:
            UsageError: Another suffix, or a place that cannot be written.
        """
        suffix = user_path(path).suffix.lower()
        if suffix not in FORMATS:
            hint = did_you_mean(suffix, FORMATS) if suffix else ""
            raise UsageError(f"{path}: unknown suffix {suffix!r}; allowed: {', '.join(FORMATS)}{hint}")
        self._write(path, lambda: self.render(suffix, size, dpi))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table behind the chart as CSV, whole or not at all."""
        self._write(path, lambda: csv_text([flat(plain(row)) for row in self.records()]).encode())

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


def _with_hints(svg: str, hints: dict[str, str]) -> str:
    """Add tooltips to the groups of an SVG."""

    def hinted(match: re.Match[str]) -> str:
        hint = hints.get(match[1])
        return f"{match[0]}<title>{escape(hint)}</title>" if hint else match[0]

    return re.sub(r'<g id="([\w-]+)">', hinted, svg)
