"""A progress bar on standard error for what takes longer than a second: how long so far, and still."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Nothing is drawn before this [s].
PATIENCE = 1.0

#: What takes the bar that is on the screen away.
_end: Callable[[], None] = lambda: None  # noqa: E731
_quiet = False


def hush(quiet: bool = True) -> None:
    """Draw nothing from now on, or draw again."""
    global _quiet
    _quiet = quiet
    if quiet:
        end()


def end() -> None:
    """Take the bar away, before something else is printed."""
    _end()


@contextmanager
def progress(what: str, total: float | None = None, patience: float = PATIENCE) -> Iterator[Callable[[float], None]]:
    """Show how far something is, where a person looks on. A bar within another takes its place.

    Args:
        what: What is going on.
        total: What ``done`` reaches; a bar that only pulses when absent.
        patience: Nothing is drawn before this [s].

    Yields:
        A function to call with how much is done.
    """
    end()
    if _quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich import progress as bars
    from rich.console import Console

    left = [bars.TextColumn("left"), bars.TimeRemainingColumn()] if total is not None else []
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TimeElapsedColumn(), *left)
    bar = bars.Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    late = threading.Timer(patience, bar.start)
    late.daemon = True
    late.start()

    def stop() -> None:
        late.cancel()
        late.join()
        bar.stop()

    global _end
    _end = stop
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        stop()
