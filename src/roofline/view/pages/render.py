"""Pages from templates: text of a program or a trace can neither become markup nor hide anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from roofline.ir.units import format_si
from roofline.view.charts.style import THEME, part_colours
from roofline.view.listing import wording
from roofline.view.listing.wording import safe

if TYPE_CHECKING:
    from jinja2 import Environment


class Bar(NamedTuple):
    """A part of a time: its name, its colour, and where it begins and how long it is, as shares of the whole."""

    name: str
    colour: str
    start: float
    share: float
    seconds: float


def render(template: str, **values: Any) -> str:
    """Fill in a template of the folder ``templates``.

    Args:
        template: Its name, without the suffix.
        values: What it shows. Text is escaped, but for pictures of our own that are marked as markup.

    Returns:
        A page, or a part of one, that loads nothing.
    """
    return _environment().get_template(f"{template}.html.j2").render(values)


def macro(template: str, name: str, moves: Any, /, **values: Any) -> Any:
    """Fill in one macro of a template of the folder ``templates``."""
    module = _environment().get_template(f"{template}.html.j2").make_module({"moves": moves})
    return getattr(module, name)(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("roofline.view.pages"), autoescape=True, undefined=StrictUndefined, finalize=_visible,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {"theme": THEME, "bars": bars, "words": wording}
    environment.filters |= {"si": _si, "percent": _percent, "breakable": _breakable, "tensor": wording.tensor}
    return environment


def _visible(value: Any) -> str:
    """Return text with control characters made visible, and markup as it is."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() or hasattr(text, "__html__") else safe(text)


def _si(value: float, unit: str = "s") -> str:
    """Return a figure with its unit; nothing for one that is not known."""
    return format_si(value, unit) if value == value else ""


def _percent(value: float) -> str:
    return f"{value:.1%}" if value == value else ""


def _breakable(name: str) -> Any:
    """Return a name that may be broken after a dot, a colon or an underscore."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=[._:])(?=[^._:])", "<wbr>", str(escape(safe(name)))))


def bars(parts: Sequence[tuple[str, float]]) -> Iterator[Bar]:
    """Lay the parts of a time end to end.

    Args:
        parts: Names and times, in order [s].

    Example:
        >>> [(bar.colour, bar.start, bar.share) for bar in bars([("floor", 3.0), ("sync", 1.0)])]
        [('floor', 0.0, 0.75), ('sync', 0.75, 0.25)]
    """
    whole, at = sum(part for _, part in parts), 0.0
    for (name, part), colour in zip(parts, part_colours([name for name, _ in parts]), strict=True):
        if whole > 0:
            yield Bar(name, colour, at / whole, part / whole, part)
        at += part
