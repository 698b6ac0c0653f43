"""A progress bar on standard error for what takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Nothing is drawn before this [s].
PATIENCE = 1.0


@contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show how far something is, where a person looks on.

    Args:
        what: What is going on.
        total: What ``done`` reaches; a bar that only pulses when absent.

    Yields:
        A function to call with how much is done.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    start = time.monotonic()
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)

    def update(done: float) -> None:
        if time.monotonic() - start > PATIENCE:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
