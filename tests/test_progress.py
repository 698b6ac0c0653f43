"""A bar where a person looks on, after a second, and none where nobody does or quiet is asked for."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest
from command_line import Run

from roofline.cli import output
from roofline.cli.progress import end, hush, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def looked_on() -> Iterator[Terminal]:
    """A person looks at standard error."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(Terminal()) as screen:
        patch.setenv("TERM", "xterm")
        output.start()
        yield screen


def wait_for(screen: Terminal, word: str) -> bool:
    for _ in range(200):
        if word in screen.getvalue():
            return True
        time.sleep(0.01)
    return False


def test_a_bar_says_what_and_how_far() -> None:
    with looked_on() as screen, progress("reading", 10, patience=0) as update:
        update(5)
        assert wait_for(screen, "reading")
        assert wait_for(screen, "left")


def test_what_is_quick_draws_nothing() -> None:
    with looked_on() as screen:
        with progress("reading", 10) as update:
            update(10)
        assert screen.getvalue() == ""


def test_a_bar_inside_another_takes_its_place() -> None:
    with looked_on() as screen, progress("outside", patience=0):
        assert wait_for(screen, "outside")
        with progress("inside", 2, patience=0):
            assert wait_for(screen, "inside")


def test_a_bar_goes_before_something_is_printed() -> None:
    with looked_on() as screen, progress("working", patience=0):
        assert wait_for(screen, "working")
        end()
        length = len(screen.getvalue())
        time.sleep(0.25)  # two refreshes of a bar that still lived
        assert len(screen.getvalue()) == length


def test_quiet_draws_nothing() -> None:
    with looked_on() as screen:
        hush()
        with progress("working", patience=0):
            time.sleep(0.05)
        assert screen.getvalue() == ""


def test_nobody_looks_on_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", patience=0):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_quiet_says_no_notes_but_errors(run: Run) -> None:
    noisy = ("estimate", "gpt2", "h100-sxm", "-S", "64", "-C", "9")
    assert "note" in run(*noisy).err
    assert run(*noisy, "--quiet").err == ""
    assert run(*noisy, "-q").out == run(*noisy).out
    assert run("estimate", "gpt3", "h100-sxm", "-q").err
    assert "note" in run(*noisy).err  # of this run alone
