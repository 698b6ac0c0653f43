"""Text from files and callers, made safe to print: one line, printable, no longer than can be read."""

from __future__ import annotations

import reprlib
from typing import Any

#: A message is no longer [characters]; of a longer one the middle is left out.
LONGEST = 2000
#: Digits of a number that a message repeats.
_DIGITS = 40


def safe(text: str) -> str:
    """Return text with control characters, line breaks and marks that turn the reading direction made visible.

    Example:
        >>> safe("layer\\x1b[31m")
        'layer\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible(text: str) -> str:
    """Return text as :func:`safe` does, with its line breaks and tabs left.

    Example:
        >>> visible("two\\nlines\\x07")
        'two\\nlines\\\\x07'
    """
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(safe, line.split("\t"))) for line in text.split("\n"))


def one_line(text: str, most: int = LONGEST) -> str:
    """Return text as one printable line of at most ``most`` characters.

    Example:
        >>> one_line("a\\n  b"), one_line("ab" * 20, 11)
        ('a b', 'abab...abab')
    """
    line = safe(" ".join(text.split()))
    if len(line) <= most:
        return line
    half = (most - 3) // 2
    return f"{line[: most - 3 - half]}...{line[-half:]}"


def shown(value: Any, most: int = 60) -> str:
    """Return a value that somebody gave, as a message repeats it: never long, whatever it is.

    Example:
        >>> shown("8"), shown(10**300), shown([0] * 9)
        ("'8'", 'a number of 301 digits', '[0, 0, 0, 0, 0, 0, ...]')
    """
    if isinstance(value, int) and abs(value) >= 10**_DIGITS:
        return f"a number of {_digits(abs(value))} digits"
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = most
    try:
        return one_line(short.repr(value), 2 * most)
    except Exception:  # a representation that somebody else wrote, or one of a number that Python does not write out
        return f"a {type(value).__name__}"


def _digits(value: int) -> int:
    """Return the number of digits without writing them, which Python refuses for more than 4,300."""
    about = int(value.bit_length() * 0.30102999566398)
    return about + int(value >= 10**about)
