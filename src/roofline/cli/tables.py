"""Rich tables and cells that fit the terminal, whatever they show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from roofline.analysis.remedies import remedies_text, would_fit
from roofline.cli.output import width
from roofline.ir.report import Report, title
from roofline.ir.units import format_bytes, format_si, parse

if TYPE_CHECKING:
    from roofline.analysis.estimates import Estimate

#: Colour of each verdict.
COLOURS = {"as_expected": "green", "slow": "yellow", "very_slow": "red", "impossible": "red"}
#: Words that are longer than this may be broken where a column of text is narrow.
_LONGEST_WORD = 24
#: Characters between two columns of a table.
_GAP = 2


@dataclass(frozen=True)
class Rows(Report):
    """Rows that are no result of an analysis, such as a list of chips."""

    schema: str
    rows: Sequence[Mapping[str, Any]] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def subject(self) -> dict[str, Any]:
        """Return what the rows are of."""
        return dict(self.about)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return [dict(row) for row in self.rows]


def table(columns: str, rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """Return a table that fits the terminal.

    Args:
        columns: Heads with ``|`` between them. ``<`` before a head: text, which may be folded; all others are numbers,
            which are never broken. ``?`` before all else: left out where the terminal is too narrow, the last first.
            Where that is not enough, heads are broken between words, and the last of the others left out.
        rows: The cells of each row.
        title: A line above.
    """
    heads = columns.split("|")
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    heads, shown = _columns_that_fit(heads, cells)
    made = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
        title=title or None, title_justify="left", title_style="bold", caption_justify="left",
        caption=_left_out(heads, shown),
    )  # fmt: skip
    for at in shown:
        is_text = "<" in heads[at][:2]
        made.add_column(
            heads[at].lstrip("?<"), justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text
        )
    for row in cells:
        made.add_row(*(row[at] for at in shown))
    return made


def _columns_that_fit(heads: Sequence[str], cells: Sequence[Sequence[Text]]) -> tuple[list[str], list[int]]:
    """Return the heads, broken where they must be, and the columns for which there is room."""
    shown = list(range(len(heads)))
    widths = _least_widths(heads, cells)
    optional = [at for at in shown if heads[at].startswith("?")]
    while optional and _too_wide(widths, shown):
        shown.remove(optional.pop())
    if _too_wide(widths, shown):
        heads = [head.replace(" ", "\n") for head in heads]
        widths = _least_widths(heads, cells)
    while len(shown) > 1 and _too_wide(widths, shown):
        shown.pop()
    return list(heads), shown


def _too_wide(widths: Sequence[int], shown: Sequence[int]) -> bool:
    return sum(widths[at] + _GAP for at in shown) - _GAP > width()


def _least_widths(heads: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    """Return the width of each column below which a number, or a word of a text, would be broken."""
    return [_least_width(head, [row[at].plain for row in cells]) for at, head in enumerate(heads)]


def _least_width(head: str, cells: Iterable[str]) -> int:
    is_text = "<" in head[:2]
    numbers = [*head.lstrip("?<").split("\n"), *cells]
    longest = max(map(len, (piece for cell in numbers for piece in cell.split()) if is_text else numbers), default=0)
    return min(longest, _LONGEST_WORD) if is_text else longest


def _left_out(heads: Sequence[str], shown: Sequence[int]) -> str | None:
    names = [head.lstrip("?<").replace("\n", " ") for at, head in enumerate(heads) if at not in shown]
    return f"in a wider terminal also: {', '.join(names)}" if names else None


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Return names and values without lines, the empty ones left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="cyan")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in ("", None):
            made.add_row(name, value if isinstance(value, Text) else str(value))
    return made


def heading(subject: Report | str) -> Text:
    """Return a line that says what the output is an output of."""
    return Text(title(subject.subject()) if isinstance(subject, Report) else subject, style="bold")


# --- cells ------------------------------------------------------------------------------------------------------------


def time_text(seconds: Any) -> str:
    """Return a time with its unit."""
    return format_si(float(seconds), "s")


def signed(seconds: float) -> Text:
    """Return a difference of times with its sign, green where less time is taken, red where more."""
    text = time_text(seconds)
    return Text(f"+{text}", style="red") if seconds > 0 else Text(text, style="green" if seconds < 0 else "")


def span(low: Any, high: Any) -> str:
    """Return two times in the unit of the larger: ``6.04-11.4 ms``."""
    number, unit = time_text(high).split(" ")
    scaled = float(f"{float(low) / parse('1 ' + unit, 's'):.3g}")
    return f"{scaled:g}-{number} {unit}"


def time_and_range(result: Any) -> str:
    """Return the time of a result with its range."""
    return f"{time_text(result.time)}  ({time_text(result.low)} to {time_text(result.high)})"


def size_text(value: Any) -> str:
    """Return a number of bytes with its unit."""
    return format_bytes(float(value))


def percent(share: Any) -> str:
    """Return a share in per cent."""
    return f"{100 * float(share):.3g}%" if share >= 0.0005 or share == 0 else "<0.1%"


def rate(value: Any, item: str) -> str:
    """Return items per second."""
    return format_si(float(value), f"{item}/s")


def known(value: float | None, unit: str) -> str:
    """Return a figure with its unit, a dash where nobody published it."""
    return format_si(value, unit) if value is not None else "-"


def yes_or_no(is_so: Any) -> Text:
    """Return yes, or no in red; a dash where nobody knows."""
    if is_so is None:
        return Text("-")
    return Text("yes") if is_so else Text("no", style="red")


# --- parts that several commands show ---------------------------------------------------------------------------------


def memory_table(parts: dict[str, Any], capacity: Any, chip: str, head: str = "memory") -> Table:
    """Return memory by part, beside what the chip has."""
    total = float(sum(parts.values()))
    rows: list[Sequence[Any]] = [
        (name.replace("kv_", "KV ").replace("_", " "), size_text(value), percent(float(value) / total))
        for name, value in parts.items()
    ]
    rows.append((heading("total"), heading(size_text(total)), ""))
    if capacity is None:
        fit = Text("not published")
    else:
        fit = Text("fits", style="green") if total <= capacity else Text("does not fit", style="bold red")
    rows.append((f"capacity of {chip}", "-" if capacity is None else size_text(capacity), fit))
    return table(f"<{head}|size|share", rows)


def would_fit_facts(result: Any, at: str = "") -> Iterator[Any]:
    """Say what would make a result fit that does not; nothing for one that fits."""
    if changes := would_fit(result):
        yield from ("", facts([(f"what would fit{at}", remedies_text(changes))]))


def would_fit_record(result: Any) -> dict[str, Any]:
    """Return the same for JSON."""
    changes = [change.record() for change in would_fit(result)]
    return {"would_fit": changes} if changes else {}


def provenance(est: Estimate) -> list[Text]:
    """Return where the figures come from and what they leave out."""
    where = f"roofline chips {est.chips[0].name}" if len(est.chips) == 1 else "roofline chips"
    return [
        Text(f"efficiencies: {est.calibrated}; regime {est.regime}; every figure and its source: {where}", style="dim"),
        Text(f"not modelled: {'; '.join(est.not_modelled)}", style="dim"),
    ]
