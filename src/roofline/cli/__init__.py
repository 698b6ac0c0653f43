"""The command line: what a person types, to calls of the library, and every error to one line and an exit code.

0: done. 1: ``check`` found a time that is not as expected, ``ops`` one that is impossible. 2: a wrong input. 70: a
fault of roofline itself. 130: interrupted. 141: nobody read the output to its end. 129, 143: told to end by SIGHUP or
SIGTERM.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

#: What lists names: a function of the library, and the command that does it here.
_LISTS = {f"roofline.{names}()": f"'roofline {names}'" for names in ("models", "chips")}
#: How the parser of options says that a text is no number, and how we do.
_PARSER = re.compile(r"Input should be a valid (integer|number), unable to parse string as an? \1")
_EXPECTED = {"integer": "a whole number", "number": "a number"}
OK, WRONG_INPUT, OWN_FAULT, INTERRUPTED, BROKEN_PIPE = 0, 2, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, those of the process when absent.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    if words == ["--version"]:  # at once, without loading what parses options
        from roofline import __version__

        print(f"roofline {__version__}")
        return OK
    with _signals():
        try:
            return _guarded(words)
        except KeyboardInterrupt:  # also while the parser is loaded
            return INTERRUPTED
        except _Ended as ended:
            return int(ended.args[0])


class _Ended(BaseException):
    """The process is told to end; what is half written is taken away on the way out."""


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does, where they would end it anyway."""
    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: object) -> NoReturn:
    raise _Ended(128 + number)


def _guarded(words: list[str]) -> int:
    """Run a command; every error becomes one line and an exit code."""
    import typer

    from roofline.cli.output import Unread, start
    from roofline.ir.errors import RooflineError

    misuse: type[Exception] = typer.BadParameter.__mro__[2]  # wherever a release of typer keeps it
    start()
    try:
        return _run(words)
    except Unread:
        _close_quietly()
        return BROKEN_PIPE
    except typer.Abort:
        return INTERRUPTED
    except RooflineError as error:
        return _fail(str(error), WRONG_INPUT)
    except misuse as error:
        return _fail(_misuse(error), WRONG_INPUT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", WRONG_INPUT)
    except Exception as error:
        return _own_fault(error)


def _prepare_streams() -> None:
    """Let a closed stream swallow what is written, and write what an encoding lacks as an escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _run(words: list[str]) -> int:
    from roofline.cli.output import say_notes
    from roofline.cli.progress import progress

    with progress(f"roofline {words[0]}" if words else "roofline"):
        code = _parser().main(args=words, prog_name="roofline", standalone_mode=False)
    say_notes()
    return code if isinstance(code, int) else OK


@cache
def _parser() -> Any:
    import typer  # loaded late: most of the start is its own

    from roofline.cli.commands import app

    return typer.main.get_command(app)


def _fail(message: str, code: int) -> int:
    from roofline.ir.text import one_line

    for function, command in _LISTS.items():  # errors name what to call in Python
        message = message.replace(function, command)
    print(f"roofline: error: {one_line(message)}", file=sys.stderr)
    return code


def _misuse(error: Exception) -> str:
    """Return the parser's complaint, with the near matches in the words of all our errors."""
    options = getattr(error, "possibilities", None) or ()
    near = _near(getattr(error, "option_name", ""), options)
    text = str(getattr(error, "message", "") if options else error.format_message()).strip()  # type: ignore[attr-defined]
    text = _PARSER.sub(lambda match: f"expected {_EXPECTED[match[1]]}", text)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "roofline"
    if not text.endswith("?"):
        hint = f"did you mean {', '.join(near)}?" if near else f"see {path} --help"
        text = f"{text.rstrip('.')}; {hint}"
    return text[:1].lower() + text[1:]


def _near(name: str, options: Sequence[str]) -> list[str]:
    """Return the options that are like the given one, the nearest first; dashes, which all have, do not count."""
    bare = {option.lstrip("-"): option for option in options}
    return [bare[match] for match in difflib.get_close_matches(name.lstrip("-"), bare)]


def _own_fault(error: Exception) -> int:
    if os.environ.get("ROOFLINE_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"{type(error).__name__}: {error}"[:300]
    return _fail(
        f"internal: {what}; this is a fault of roofline, please report it (ROOFLINE_DEBUG=1 shows where)", OWN_FAULT
    )


def _close_quietly() -> None:
    """Keep the interpreter from complaining about the pipe once more when it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
