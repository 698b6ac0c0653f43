"""A picture that is drawn only when shown or saved, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
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

from roofline.ir.errors import UsageError, did_you_mean
from roofline.view.charts.style import RC

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Formats by suffix, with the metadata that would make two equal pictures differ switched off.
FORMATS: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class Picture(ABC):
    """What all plots share. Subclasses say what to draw and what table is behind it."""

    #: Width and height of the figure [inch].
    default_size: ClassVar[tuple[float, float]] = (8.0, 5.4)

    @abstractmethod
    def _draw(self, figure: Figure) -> None:
        """Draw into a figure."""

    def _hints(self) -> dict[str, str]:
        """Tooltips of an SVG by the id of its group."""
        return {}

    @abstractmethod
    def frame(self) -> pd.DataFrame:
        """The table behind the plot."""

    def figure(self, size: tuple[float, float] | None = None) -> Figure:
        """Draw a new figure, outside of pyplot.

        Args:
            size: Width and height [inch]; a hundred pixels an inch on screen.
        """
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        with matplotlib.rc_context(RC):
            figure = Figure(figsize=size or self.default_size, dpi=100, layout="constrained")
            FigureCanvasAgg(figure)
            self._draw(figure)
            figure.set_layout_engine("none")
        return figure

    def render(self, suffix: str, size: tuple[float, float] | None = None, dpi: float = 200) -> bytes:
        """Draw into bytes of a format; the same plot gives the same bytes.

        Args:
            suffix: ``.png``, ``.svg`` or ``.pdf``.
            size: Width and height [inch].
            dpi: Pixels an inch of a PNG.
        """
        import matplotlib

        buffer = io.BytesIO()
        figure = self.figure(size)
        with matplotlib.rc_context(RC):
            figure.savefig(buffer, format=suffix[1:], dpi=dpi, metadata=FORMATS[suffix])
        data = buffer.getvalue()
        return _with_hints(data.decode(), self._hints()).encode() if suffix == ".svg" else data

    def save(self, path: str | os.PathLike[str], size: tuple[float, float] | None = None, dpi: float = 200) -> None:
        """Write the plot to a file, whole or not at all.

        Args:
            path: The suffix picks the format: ``.png``, ``.svg`` or ``.pdf``.
            size: Width and height [inch].
            dpi: Pixels an inch of a PNG.

        Raises:
            UsageError: Another suffix, or a place that cannot be written.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in FORMATS:
            hint = did_you_mean(suffix, FORMATS) if suffix else ""
            raise UsageError(f"{path}: unknown suffix {suffix!r}; allowed: {', '.join(FORMATS)}{hint}")
        _writable(Path(path))
        write_whole(path, self.render(suffix, size, dpi))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table behind the plot as CSV, whole or not at all."""
        write_whole(path, self.frame().to_csv(index=False).encode())

    def show(self) -> None:
        """Show the plot: in the notebook if this is one, else in the browser."""
        if _in_notebook():
            importlib.import_module("IPython.display").display(self)
            return
        with tempfile.NamedTemporaryFile(prefix="roofline-", suffix=".svg", delete=False) as file:
            file.write(self.render(".svg"))
        if not webbrowser.open(Path(file.name).as_uri()):
            raise UsageError(f"no browser to show the plot in; it is in {file.name} (or use .save)")

    def _repr_png_(self) -> bytes:
        return self.render(".png", dpi=100)

    def _repr_svg_(self) -> str:
        return self.render(".svg").decode()


def _in_notebook() -> bool:
    shell: Any = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def _with_hints(svg: str, hints: dict[str, str]) -> str:
    """Add tooltips to the groups of an SVG."""

    def hinted(match: re.Match[str]) -> str:
        hint = hints.get(match[1])
        return f"{match[0]}<title>{escape(hint)}</title>" if hint else match[0]

    return re.sub(r'<g id="([\w-]+)">', hinted, svg)


def _writable(path: Path) -> None:
    whole = path.expanduser()
    if os.path.isdir(whole):
        raise UsageError(f"{path}: a directory; give the name of a file")
    if not os.path.isdir(whole.parent):
        raise UsageError(f"{path}: there is no directory {str(whole.parent)!r}")


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that nobody ever sees half of it.

    Args:
        path: The file; an old one is replaced.
        data: Its content.

    Raises:
        UsageError: The folder is missing, or the file cannot be written.
    """
    _writable(Path(path))
    target = Path(path).expanduser()
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            beside.write_bytes(data)
            os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):
                beside.unlink()
            raise
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path}: cannot be written: {getattr(problem, 'strerror', None) or problem}") from None
