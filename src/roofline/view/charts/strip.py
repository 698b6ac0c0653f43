"""Rows below the axes of a chart for what has no place on them: markers by falling size, whose place says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roofline.view.charts.style import MUTED, pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

#: Where what stands below the axes and their name begins, the least height of a row, and the space in it [point].
TOP, LEAST, SPACE = 40.0, 13.0, 5.0


def below(ax: Axes, points: float) -> Any:
    """Return a transformation to what is drawn below the name of the axis: x as on the axes, y 0 that far down."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    return ax.transAxes + ScaledTranslation(0, -(TOP + points) / 72, figure.dpi_scale_trans)


@dataclass(frozen=True, slots=True)
class Row:
    """One row, its caption at the left.

    Attributes:
        caption: Why its markers are no points on the axes.
        numbers: Of the markers, the largest first.
        radii: Of each [point].
        above: Height of the rows above it [point].
    """

    caption: Text
    numbers: tuple[int, ...]
    radii: tuple[float, ...]
    above: float

    @classmethod
    def begin(cls, ax: Axes, text: str, numbers: Sequence[int], radii: Sequence[float], above: float) -> Row:
        """Write the caption of a row."""
        row = cls(ax.text(0, 0, text, fontsize=8, color=MUTED, va="center", gid="strip"), tuple(numbers),
                  tuple(radii), above)  # fmt: skip
        row.caption.set_transform(row.transform(ax))
        return row

    @property
    def height(self) -> float:
        """Height of the row [point]."""
        return max(LEAST, 2 * max(self.radii) + 3)

    def transform(self, ax: Axes) -> Any:
        """Return the transformation to the middle of the row."""
        return below(ax, self.above + self.height / 2)

    def places(self, ax: Axes, labels: Mapping[int, tuple[str, dict[str, Any]]]) -> Iterator[tuple[int, Any]]:
        """Write labels behind their markers as far as there is room; yield where each marker stands.

        Args:
            ax: The axes, whose layout is known.
            labels: Text and look of each marker that has one.
        """
        frame, px = ax.get_window_extent(), pixels(ax)
        look: dict[str, Any] = {"fontsize": 8, "va": "center", "transform": self.transform(ax)}
        texts = {i: ax.text(0, 0, text, gid=f"strip-{i}", **look, **own) for i, (text, own) in labels.items()}
        start = self.caption.get_window_extent().x1 + 2 * SPACE * px
        scale = self._fit(texts, float(frame.x1 - start), px)
        at = float(start)
        for number, radius in zip(self.numbers, self.radii, strict=True):
            yield number, ((at + radius * px * scale - frame.x0) / frame.width, 0.0)
            at += (2 * radius + SPACE) * px * scale
            if text := texts.get(number):
                text.set_x((at - SPACE / 2 * px - frame.x0) / frame.width)
                at += text.get_window_extent().width + SPACE * px

    def _fit(self, texts: dict[int, Text], room: float, px: float) -> float:
        """Take labels away, the last first, until the row fits; return how far the markers must move together."""
        markers = sum(2 * radius + SPACE for radius in self.radii) * px
        widths = {i: text.get_window_extent().width + SPACE * px for i, text in texts.items()}
        while widths and markers + sum(widths.values()) > room:
            last, _ = widths.popitem()
            texts.pop(last).remove()
        return min(1.0, (room - sum(widths.values())) / markers)
