"""A page: chapters in order, each made from a result, with the charts' library and one script inside it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.files import user_path, whole_file
from roofline.view.charts.style import THEME
from roofline.view.pages.moves import Cell, Moves
from roofline.view.pages.render import macro, render


def checked(path: str | os.PathLike[str]) -> None:
    """Refuse a name that no page has.

    Raises:
        UsageError: Its suffix is another than ``.html``.
    """
    if user_path(path).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: a report is a page; give a name that ends in .html")


def _rgba(colour: str) -> str:
    """Return a colour as the beginning of one with an opacity, which charts have, too.

    Example:
        >>> _rgba("#0072b2")
        'rgba(0,114,178'
    """
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)}"


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a page: its anchor, its heading and what is below it."""

    name: str
    title: str
    body: str


def chapter(name: str, title: str, template: str, moves: Moves, **values: Any) -> Chapter:
    """Make a chapter from the macro of that name in a template."""
    return Chapter(name, title, macro(template, name, moves, **values))


@dataclass(frozen=True, eq=False, repr=False)
class Page:
    """A page of HTML that needs nothing beside itself.

    From :func:`roofline.report`.

    Attributes:
        title: Its heading.
        subtitle: What it is a report of.
        chapters: Its parts, from top to bottom.
        moves: What its slider changes.
        headline: The answer in a line, for each batch of the slider.
    """

    title: str
    subtitle: str
    chapters: tuple[Chapter, ...]
    moves: Moves = field(default_factory=Moves)
    headline: Cell | None = None

    def html(self) -> str:
        """Return the page as text."""
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs

        library = Markup(get_plotlyjs()) if self.moves.pictures else ""
        return render(
            "page", title=self.title, subtitle=self.subtitle, chapters=self.chapters, moves=self.moves,
            headline=self.headline, data=self._data, plotly=library,
        )  # fmt: skip

    def _data(self) -> str:
        """Return what the script needs, once all that changes has been written."""
        from jinja2.utils import htmlsafe_json_dumps

        dark = {form(light): form(dark) for light, dark in THEME.values() for form in (str, _rgba)}
        return htmlsafe_json_dumps({**self.moves.data(), "dark": dark}, separators=(",", ":"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, whole or not at all.

        Raises:
            UsageError: Another suffix, or a place that cannot be written.
        """
        checked(path)
        with whole_file(path) as stream:
            stream.write(self.html())

    def __repr__(self) -> str:
        return f"<Page {self.title!r}: {len(self.chapters)} chapters, from {self.chapters[0].title!r} on>"
