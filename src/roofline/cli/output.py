"""Writing: tables to the screen, strict JSON, flat CSV, notes beside the output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from roofline.cli.progress import end, hush
from roofline.ir.csvfile import csv_text
from roofline.ir.report import plain
from roofline.ir.text import one_line, visible

if TYPE_CHECKING:
    from rich.segment import Segment


def show(*parts: Any) -> None:
    """Print rich renderables, or plain text, to standard output; without colours where that is no terminal."""
    write(rendered(*parts))


def rendered(*parts: Any, plain: bool = False) -> Rendered:
    """Return rich renderables as text of the terminal's width; ``plain`` is without colours wherever it goes."""
    from rich.console import Console
    from rich.segment import Segments

    console = Console(markup=False, highlight=False, emoji=False, color_system=None if plain else "auto")
    with console.capture() as captured:
        for part in parts:
            console.print(Segments(_cleaned(console.render(part))), end="")
    return Rendered("\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n") + "\n")


class Rendered(str):
    """Text that was cleaned before its colours were put in."""

    __slots__ = ()


def _cleaned(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Show what a terminal would obey: whatever is printed, from whichever file, passes here or :func:`write`."""
    for segment in segments:
        yield segment if segment.control else segment._replace(text=visible(segment.text))


def width() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    from rich.console import Console

    return Console().width


class Unread(Exception):
    """Nobody reads the output any more; no OSError, which typer would turn into an exit code of its own."""


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Flush what was written to standard output.

    Raises:
        Unread: The pipe is closed at its other end.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise Unread from None


def write(text: str) -> None:
    """Write text to standard output, made harmless unless it was :func:`rendered`.

    Raises:
        Unread: The pipe is closed at its other end.
    """
    end()
    say_notes()
    with reader_may_leave():
        sys.stdout.write(text if isinstance(text, Rendered) else visible(text))


#: Said as soon as there is output that they stand beside: an error stands alone.
_notes: list[str] = []
_quiet = False


def note(text: str) -> None:
    """Say something beside the output, before it or at the end."""
    _notes.append(one_line(text))


def interrupted(done: str) -> NoReturn:
    """Say that the same command goes on from what is done, and end as Ctrl-C does."""
    from typer import Abort

    note(f"interrupted {done}; the same command goes on from there")
    say_notes()
    raise Abort


def quieten() -> None:
    """Print neither notes nor progress in this run."""
    global _quiet
    _quiet = True
    hush()


def note_failed(reasons: Mapping[str, int], what: str) -> None:
    """Note how many rows failed, and the most frequent reason.

    Args:
        reasons: Rows by reason.
        what: What could not be done with them: ``judged``, ``predicted``.
    """
    if reasons:
        reason, often = max(reasons.items(), key=lambda pair: pair[1])
        every = sum(reasons.values())
        note(f"{every:,} row{'s' * (every > 1)} could not be {what}, {often:,} of them: {reason}")


def say_notes() -> None:
    """Print the notes that wait for output."""
    for text in dict.fromkeys(_notes) if not _quiet else ():
        print(f"roofline: note: {text}", file=sys.stderr)
    drop_notes()


def drop_notes() -> None:
    """Forget them: there is no output that they would stand beside."""
    _notes.clear()


def start() -> None:
    """Begin a run: no notes, and no wish for quiet."""
    global _quiet
    _quiet = False
    hush(False)
    drop_notes()


def json_text(value: Any) -> str:
    """Return the text of strict JSON: no NaN, no Infinity, only plain types."""
    text = json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n")) + "\n"


def _escaped(line: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def write_json(value: Any) -> None:
    """Write strict JSON."""
    write(json_text(value))


def write_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows without nesting as CSV."""
    write(csv_text(rows))
