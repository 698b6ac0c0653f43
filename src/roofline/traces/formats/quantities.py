"""Numbers and units as profilers write them: ``Mbyte``, ``usecond``, ``MBps``, ``1.215.000,00``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

_SMALL = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3}
_LARGE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
          "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}  # fmt: skip

#: What one of each spelling of a time is [s].
TIMES = {f"{p}{w}": f for p, f in _SMALL.items() for w in ("s", "sec", "secs", "second", "seconds")}
#: What one of each spelling of a size is [B].
BYTES = {f"{p}{w}": f for p, f in _LARGE.items() for w in ("B", "byte", "bytes")}
_RATES = {f"{p}{w}": f for p, f in _LARGE.items() for w in ("Hz", "hz")}
_UNITS = {**TIMES, **BYTES, **_RATES}

#: What stands between groups of three digits, besides the point and the comma.
_GAPS = str.maketrans("", "", " \t\u00a0\u2009\u202f'’_")
_NUMERIC = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = r"[+-]?[1-9]\d{0,2}(?:\%s\d{3})+"

#: No longer header has a unit.
_LONGEST = 200
#: Label and unit of a header such as ``time_us``, ``Time in ms``.
_SUFFIX = re.compile(r"(.*?)[ _.]*(?:\bin[ _]+)?[ _.]([a-zµμ]+)", re.I)
#: The same of a header such as ``Start (us)``, ``DEVICE KERNEL DURATION [ns]``.
_HEADER = re.compile(r"\s*(.*?)\s*[(\[]\s*([^()\[\]]*?)\s*[)\]]\s*")


def scale(unit: str) -> float:
    """Return what one of a unit is in SI; 1 of what is not known, such as ``inst`` or ``%``.

    Example:
        >>> scale("Mbyte"), scale("usecond"), scale("Kbyte/block"), scale("cycle/nsecond"), scale("%")
        (1000000.0, 1e-06, 1000.0, 999999999.9999999, 1.0)
    """
    text = unit.strip()
    if text.endswith("Bps"):
        text = f"{text[:-2]}/s"
    over, _, under = text.partition("/")
    return _UNITS.get(over.strip(), 1.0) / _UNITS.get(under.strip(), 1.0)


def split_header(header: str) -> tuple[str, str]:
    """Return label and unit of a column.

    Example:
        >>> split_header("Total Time (nsec)"), split_header("Name")
        (('Total Time', 'nsec'), ('Name', ''))
    """
    match = _HEADER.fullmatch(header) if len(header) <= _LONGEST else None
    return (match[1], match[2]) if match else (header.strip(), "")


def split_timed(header: str) -> tuple[str, str]:
    """Return label, in small letters, and unit of a column of times; of any other the whole header and no unit.

    Example:
        >>> split_timed("time_us"), split_timed("Latency (ms)"), split_timed("us"), split_timed("Memory (MB)")
        (('time', 'us'), ('latency', 'ms'), ('', 'us'), ('memory (mb)', ''))
    """
    label, unit = split_header(header)
    if unit in TIMES:
        return label.casefold(), unit
    match = _SUFFIX.fullmatch(header.strip()) if len(header) <= _LONGEST else None
    if match and match[2] in TIMES:
        return match[1].casefold(), match[2]
    return ("", label) if label in TIMES else (header.strip().casefold(), "")


def column_of_times(
    columns: Sequence[str], words: Sequence[str], accepts: Callable[[int, str, str], bool]
) -> tuple[int, str]:
    """Return position and unit of the column of times, -1 of none: those with a unit first, then by their words.

    Args:
        columns: Headers.
        words: Parts of a label, the surest first.
        accepts: Whether a column is one of times, by position, label and unit.
    """
    options = []
    for at, column in enumerate(columns):
        label, unit = split_timed(column)
        if accepts(at, label, unit):
            rank = next((rank for rank, word in enumerate(words) if word in label), len(words))
            options.append((not unit, rank, at, unit))
    return min(options)[2:] if options else (-1, "")


def decimal_mark(values: Iterable[str]) -> str:
    """Return the character before decimals, judged by the first value that leaves no doubt; a point where none does.

    Example:
        >>> decimal_mark(["1.215", "1.215.000,00"]), decimal_mark(["1,234"]), decimal_mark(["0,98"])
        (',', '.', ',')
    """
    for value in values:
        text = value.translate(_GAPS)
        if _NUMERIC.fullmatch(text) and (mark := _mark(text)):
            return mark
    return "."


def _mark(text: str) -> str:
    points, commas = text.count("."), text.count(",")
    if points and commas:
        return "." if text.rindex(".") > text.rindex(",") else ","
    if not points and not commas:
        return ""
    own, other = (".", ",") if points else (",", ".")
    if not re.fullmatch(_GROUPED % own, text):
        return own
    return other if points + commas > 1 else ""


def number(text: str | None, decimal: str = ".") -> float | None:
    """Return a finite number, or ``None`` for whatever is none, such as ``n/a``.

    Example:
        >>> number("1,215,000.50"), number("1.215.000,5", ","), number("n/a")
        (1215000.5, 1215000.5, None)
    """
    if text and len(text) < 16 and text.isascii() and text.isdigit():
        return float(text)  # most cells are bare whole numbers
    plain = _plain(text, decimal)
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def exact(text: str | None, unit: str = "") -> Decimal | None:
    """Return a time as it is written [us], since those of a clock that began in 1970 have more digits than a float.

    Example:
        >>> str(exact("1778000000000001125", "ns")).rstrip("0"), exact("n/a")
        ('1778000000000001.125', None)
    """
    try:
        value = Decimal(_plain(text)) * Decimal(repr(TIMES.get(unit, 1.0))) * 1_000_000
    except ArithmeticError:
        return None
    return value if abs(value) < 2**61 else None


def _plain(text: str | None, decimal: str = ".") -> str:
    """Return a number as Python writes it; empty where the text is none."""
    plain = (text or "").translate(_GAPS).rstrip("%")
    if not _NUMERIC.fullmatch(plain):
        return ""
    return plain.replace("," if decimal == "." else ".", "").replace(decimal, ".")


def whole(text: str | None, default: int = -1, limit: int = 2**31) -> int:
    """Return a whole number below ``limit``, or ``default``.

    Example:
        >>> whole("7"), whole("7.0"), whole("seven"), whole("99999999999")
        (7, 7, -1, -1)
    """
    value = number(text)
    return int(value) if value is not None and abs(value) < limit else default


def whole_numbers(text: str | None) -> tuple[int, ...]:
    """Return the whole numbers of a text such as ``(128, 1, 1)``.

    Example:
        >>> whole_numbers("(128, 1, 1)"), whole_numbers("32 x 1 x 1")
        ((128, 1, 1), (32, 1, 1))
    """
    return tuple(int(part) for part in re.findall(r"\d{1,18}", text or "", re.ASCII))


def plural(number: int, word: str) -> str:
    """Return a number and its noun.

    Example:
        >>> plural(1, "kernel"), plural(2000, "copy")
        ('1 kernel', '2,000 copies')
    """
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{number:,} {word if number == 1 else many}"
