"""Quantities as text at the edge, SI floats inside.

``parse("3.35 TB/s", "B/s")`` and ``format_si(3.35e12, "B/s")`` are each other's inverse. Decimal prefixes are
powers of 1000, binary ones (KiB, MiB, GiB, TiB) powers of 1024: GB and GiB are never the same thing here.
"""

from __future__ import annotations

import math
import re
from numbers import Real

from roofline.ir.errors import UnitError, UsageError, did_you_mean
from roofline.ir.numbers import as_float
from roofline.ir.text import one_line, shown

#: A multiply-add counts as two floating-point operations; said here and nowhere else.
MAC = 2

#: No quantity is larger, in its unit without prefix: products of a few such quantities stay inside float64.
LARGEST = 1e60

#: SI prefixes, in the spelling that units use.
PREFIXES = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3,
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip

_BYTES = {f"{prefix}B": scale for prefix, scale in PREFIXES.items() if scale >= 1}
_FLOPS = {f"{prefix}{word}": scale for prefix, scale in PREFIXES.items() if scale >= 1 and "i" not in prefix
          for word in ("FLOP", "FLOPS", "OP", "OPS")}  # fmt: skip
_TIMES = {f"{prefix}s": scale for prefix, scale in PREFIXES.items() if scale <= 1} | {
    "min": 60.0,
    "h": 3600.0,
}

#: Accepted spellings of each unit and what one of it is in SI.
UNITS: dict[str, dict[str, float]] = {
    "B": _BYTES,
    "B/s": {f"{unit}/s": scale for unit, scale in _BYTES.items()}
    | {f"{prefix}bit/s": PREFIXES[prefix] / 8 for prefix in ("", "k", "M", "G", "T")},
    "FLOP": _FLOPS,
    "FLOP/s": {f"{unit}/s": scale for unit, scale in _FLOPS.items() if not unit.endswith("S")}
    | {unit: scale for unit, scale in _FLOPS.items() if unit.endswith("S")},
    "s": _TIMES,
    "Hz": {f"{prefix}Hz": scale for prefix, scale in PREFIXES.items() if scale >= 1 and "i" not in prefix},
    "W": {f"{prefix}W": scale for prefix, scale in PREFIXES.items() if "i" not in prefix},
}

_LONGEST = 400
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$", re.ASCII)


def parse(text: str | float, unit: str, name: str = "") -> float:
    """Read a quantity as an SI float.

    Args:
        text: Such as ``"3.35 TB/s"``, ``"80GiB"``, ``"41 ms"``; a number (not a text) is in SI already.
        unit: The expected unit: ``B``, ``B/s``, ``FLOP``, ``FLOP/s``, ``s``, ``Hz`` or ``W``.
        name: The option or keyword that it was given for, which a message then begins with.

    Returns:
        The value in that unit without prefix.

    Raises:
        UnitError: Not a finite number, a text without a unit (the message offers some), or not in that unit.

    Example:
        >>> parse("41 ms", "s")
        0.041
        >>> parse("80 GiB", "B")
        85899345920.0
    """
    allowed, quantity = UNITS[unit], _given(text, name)
    if isinstance(text, Real) and not isinstance(text, bool):
        return _finite(as_float(text), quantity, unit)
    match = _NUMBER.match(text) if isinstance(text, str) and len(text) <= _LONGEST else None
    if match is None:
        raise UnitError(f"{quantity} is not a quantity; write a number and a unit such as {_examples(unit)}")
    number, spelled = match.groups()
    if not spelled:
        *others, last = (f"{one_line(number, 20)}{choice}" for choice in _CHOICES[unit])
        raise UnitError(f"{quantity} has no unit: {', '.join(others)} or {last}?")
    if spelled not in allowed:
        raise UnitError(
            f"{quantity}: unknown unit {shown(spelled)}; expected {unit}, such as {_examples(unit)}"
            + did_you_mean(spelled, allowed)
        )
    return _finite(float(number) * allowed[spelled], quantity, unit)


def limit(name: str, value: str | float | None, unit: str, absent: float = math.inf) -> float:
    """Read the most of something that is allowed; ``absent`` where nothing is given.

    Raises:
        UsageError: Nothing above zero.
        UnitError: As :func:`parse`.

    Example:
        >>> limit("latency_limit", "50 ms", "s"), limit("latency_limit", None, "s")
        (0.05, inf)
    """
    most = absent if value is None else parse(value, unit, name)
    if most <= 0:
        raise UsageError(f"{name}={value!r}: limits must be positive")
    return most


def share(value: str | float, name: str, *, none: bool = False) -> float:
    """Read a share of a whole: ``"90%"``, or a number above 0 up to 1; 0 too where none of it is allowed.

    Raises:
        UnitError: Anything else; a number above 1 may be per cent, which the message asks for.

    Example:
        >>> share("90%", "near"), share(0.9, "near")
        (0.9, 0.9)
    """
    quantity = _given(value, name)
    match = _NUMBER.match(value) if isinstance(value, str) and len(value) <= _LONGEST else None
    scale = {"": 1.0, "%": 0.01}.get(match[2]) if match else None if isinstance(value, str) else 1.0
    if scale is None:
        raise UnitError(f"{quantity} is not a share; write it as 90% or 0.9")
    number = (float(match[1]) if match else as_float(value)) * scale
    if not (0 < number <= 1 or (none and number == 0)):
        hint = f": {number:g}% or {number / 100:g}?" if scale == 1 and 1 < number <= 100 else ""
        raise UnitError(f"{quantity} is no share {'from' if none else 'above'} 0% up to 100%{hint}")
    return number


#: Units that a message offers for a number that has none.
_CHOICES = {
    "B": ("GiB", "GB", "MiB"), "B/s": ("GB/s", "TB/s"), "FLOP": ("GFLOP", "TFLOP"), "FLOP/s": ("GFLOP/s", "TFLOP/s"),
    "s": ("us", "ms", "s"), "Hz": ("MHz", "GHz"), "W": ("W", "kW"),
}  # fmt: skip


def _given(value: object, name: str) -> str:
    """Repeat what was given, as it was: an option of the command line, a keyword, or the value alone."""
    if name.startswith("--"):
        return f"{name} {one_line(str(value), 60)}"
    return f"{name}={shown(value)}" if name else shown(value)


def _finite(value: float, quantity: str, unit: str) -> float:
    if not abs(value) <= LARGEST:
        raise UnitError(f"{quantity} is not a finite number of {unit}")
    return value


def _examples(unit: str) -> str:
    return {
        "B": "80 GB or 80 GiB", "B/s": "3.35 TB/s", "FLOP": "12 GFLOP", "FLOP/s": "989 TFLOP/s",
        "s": "41 ms", "Hz": "1.98 GHz", "W": "700 W",
    }[unit]  # fmt: skip


def format_si(value: float, unit: str, digits: int = 3) -> str:
    """Write an SI value with the prefix that leaves one to three digits before the point.

    Args:
        value: In ``unit`` without prefix.
        unit: As for :func:`parse`, or any other text such as ``token/s``.
        digits: Significant digits.

    Example:
        >>> format_si(3.35e12, "B/s"), format_si(0.041, "s"), format_si(0, "FLOP")
        ('3.35 TB/s', '41 ms', '0 FLOP')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {unit}"
    below = ("n", "u", "m") if unit in ("s", "W") else ()
    ladder = [
        (p, PREFIXES[p]) for p in (*below, "", "k", "M", "G", "T", "P", "E") if not (unit == "s" and PREFIXES[p] > 1)
    ]
    prefix, scale = ladder[0]
    for name, size in ladder:
        if float(f"{abs(value) / size:.{digits}g}") >= 1:
            prefix, scale = name, size
    return f"{_plain(value / scale, digits)} {prefix}{unit}"


def _plain(value: float, digits: int) -> str:
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.0f}" if rounded == int(rounded) and abs(rounded) < 1e15 else f"{rounded:.{digits}g}"


def format_bytes(value: float) -> str:
    """Write a byte count in binary prefixes, as memory is sold and allocated.

    Example:
        >>> format_bytes(85899345920)
        '80.00 GiB'
    """
    for prefix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if abs(value) >= PREFIXES[prefix]:
            return f"{value / PREFIXES[prefix]:.2f} {prefix}B"
    return f"{value:.0f} B"
