"""JSON that is larger than memory, or broken: values one by one, what does not parse repaired or left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from typing import Any

from roofline.ir.errors import TraceError
from roofline.traces.formats.bytestream import ByteStream

#: Bytes fetched at a time; little, because the decoder counts the lines before each fault that it finds.
CHUNK = 2**17
#: The largest single value: longer ones are no events.
LARGEST = 8 * 2**20

NAN = float("nan")
#: Numbers of more characters are read exactly.
_DIGITS = 12

#: What may stand before a value, and between two.
BLANK = re.compile(r"[ \t\r\n]*")
BETWEEN = re.compile(r"[ \t\r\n,]*")
_KEYS = '"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"'
#: Where one event ends and the next begins.
_NEXT = re.compile(r"\}\s*(?:,\s*)?(?=\{\s*" + _KEYS + r"\s*:)")
#: Where the last event ends: keys of the root may follow.
_LAST = re.compile(r"\}\s*\](?=\s*(?:,\s*\"\w+\"\s*:|\}|$))")
#: A name, up to the key that follows it, whatever quotes it holds.
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*' + _KEYS + r"\s*:|\}\s*$))", re.DOTALL)
_TRAILING = re.compile(r",(\s*[}\]])")

#: What C and Python write where a number is none, such as ``nan``, ``-inf`` and ``-nan(ind)``.
_WORD = re.compile(r"[-+]?(?:s?nan|inf|infinity|none|undefined)\b(?:\(\w{0,20}\))?(?=\s*[,}\]])", re.IGNORECASE)

#: What the decoder says where a quote was not escaped.
_QUOTE = ("Expecting ',' delimiter", "Expecting ':' delimiter", "Expecting property name")
QUOTE_HINT = "unescaped quote in event name; re-export or strip python_function events"


class Cut(Exception):
    """The text ended within a value."""


class JsonStream:
    """Values of a JSON text that is fetched as it is needed.

    The bytes are read as Latin-1, so that a position in the text is one in the file and no character is ever cut;
    :func:`text` makes the characters of a string what they are.

    Attributes:
        name: The file, as errors name it.
        fault: What was repaired in the element that came last; whoever reads it empties it.
        broken: How many values were left out.
        first: Where the first of those was and what was wrong with it.
        cut: Whether the text ended within a value.
        closed: Whether the last list had its closing bracket.
        comma: Whether a comma stood before it.
    """

    def __init__(self, source: ByteStream) -> None:
        self.fault = ""
        self.broken = 0
        self.first = ""
        self.cut = False
        self.closed = True
        self.comma = False
        self.name = source.name
        self._source = source
        self._text = ""
        self._at = 0
        self._base = 0
        self._lines = 0
        self._line_start = 0
        self._odd = 0
        decoder = json.JSONDecoder(strict=False, parse_constant=self._constant, parse_float=exact)
        self._decode = decoder.raw_decode

    def _constant(self, word: str) -> float:
        self._odd += 1
        return float(word)

    def _reword(self, error: Exception, at: int) -> bool:
        """Put ``NaN`` in the place of a bare word at a fault, so that only this value is lost; tell whether it did."""
        self._odd = 0
        word = _WORD.match(self._text, at) if str(error).startswith("Expecting value") else None
        if word is not None:
            self._text = f"{self._text[:at]}{'NaN':{len(word[0])}}{self._text[word.end() :]}"
        return word is not None

    def _more(self) -> bool:
        """Drop what was read and fetch more; ``False`` at the end."""
        data = self._source.chunk(CHUNK)
        if not data:
            return False
        gone = self._text[: self._at]
        if (newline := gone.rfind("\n")) >= 0:
            self._lines += gone.count("\n")
            self._line_start = self._base + newline + 1
        self._base += self._at
        self._text = self._text[self._at :] + data.decode("latin-1")
        self._at = 0
        return True

    def where(self, at: int | None = None) -> str:
        """Return a position as line, column and byte."""
        at = self._at if at is None else at
        line = self._lines + self._text.count("\n", 0, at) + 1
        newline = self._text.rfind("\n", 0, at)
        column = at - newline if newline >= 0 else self._base + at - self._line_start + 1
        return f"line {line:,}, column {column:,} (byte {self._base + at:,})"

    def peek(self, skip: re.Pattern[str] = BLANK) -> str:
        """Return the next character that is no blank; empty at the end."""
        while True:
            match = skip.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, character: str) -> bool:
        """Go past one character, where it is the next."""
        follows = self.peek() == character
        self._at += follows
        return follows

    def value(self) -> Any:
        """Return the next value.

        Raises:
            Cut: The text ends within it.
            TraceError: It is no JSON, or too large.
        """
        while True:
            self.peek()
            # A number at the end of what was fetched might go on.
            if len(self._text) - self._at < 64:
                self._more()
            try:
                value, self._at = self._decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                self._check(error)
                if self._reword(error, _position(error, self._at)):
                    continue
                if not _incomplete(error, self._text):
                    place = self.where(_position(error, self._at))
                    raise TraceError(f"{self.name}: not valid JSON at {place}") from None
                if not self._more():
                    raise Cut from None
            else:
                return value

    def elements(self) -> Iterator[Any]:
        """Yield the elements of a list whose opening bracket was taken, each one as soon as it is there."""
        decode, between = self._decode, BETWEEN.match
        self._odd = 0
        while True:
            match = between(self._text, self._at)
            at = match.end() if match else self._at
            if at == len(self._text):
                self.comma |= "," in self._text[self._at : at]
                self._at = at
                if self._more():
                    continue
                self.closed = False
                return
            try:
                value, end = decode(self._text, at)
            except (ValueError, RecursionError) as error:
                if self._text[at] == "]":
                    self.comma |= "," in self._text[self._at : at]
                    self._at = at + 1
                    return
                self._at = at
                yield from self._recover(error)
                if self.cut or not self.closed:
                    return
                continue
            self._at = end
            self.comma = False
            if self._odd:
                self.fault, self._odd = "NaN", 0
            yield value

    def _check(self, error: Exception) -> None:
        if isinstance(error, RecursionError):
            raise TraceError(f"{self.name}: nested too deeply at {self.where()}; no profiler writes that")
        if len(self._text) - self._at > LARGEST:
            raise TraceError(f"{self.name}: a single value of more than {LARGEST:,} bytes at {self.where()}")

    def _recover(self, error: Exception) -> Iterator[Any]:
        """Fetch what an element lacks; repair it or go past it where that does not help."""
        if isinstance(error, RecursionError):
            self._check(error)
        incomplete = _incomplete(error, self._text)
        # Fetching moves the text under the position that the error names.
        offset = max(_position(error, self._at) - self._at, 0)
        if incomplete and len(self._text) - self._at <= LARGEST and self._more():
            return
        if self._reword(error, self._at + offset):
            return
        following = _NEXT.search(self._text, self._at)
        while following is None and not incomplete:
            self._check(error)
            if not self._more():
                break
            following = _NEXT.search(self._text, self._at)
        place = "" if self.first else self.where(self._at + offset)
        if str(error).startswith(_QUOTE):
            place += f": {QUOTE_HINT}"
        if following is not None:
            yield from self._mend(following.start() + 1, following.end(), place)
        elif _unfinished(error, self._text[self._at + offset :]):
            self._check(error)
            self.cut, self.closed, self._at = True, False, len(self._text)
        else:
            yield from self._mend_last(place)

    def _mend_last(self, place: str) -> Iterator[Any]:
        # Keys of the root may follow the list, but no further event.
        last = _LAST.search(self._text, self._at)
        end = last.end() - 1 if last else self._text.rfind("]", self._at)
        self.closed = end >= 0
        end = end if end >= 0 else len(self._text)
        yield from self._mend(end, end, place)

    def _mend(self, end: int, after: int, place: str) -> Iterator[Any]:
        """Repair an element that ends at ``end``, or count it as broken; go on at ``after``."""
        raw = self._text[self._at : end]
        self._at = after
        for what, mended in (("a trailing comma", _TRAILING.sub(r"\1", raw)), ("an unescaped quote", _escaped(raw))):
            try:
                value, stop = self._decode(mended)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and not mended[stop:].strip():
                self.fault, self._odd = what, 0
                self.first = self.first or (place if what == "an unescaped quote" else "")
                yield value
                return
        self.broken += 1
        self.first = self.first or place


def exact(text: str) -> float | Decimal:
    """Return a number as it is written: times since 1970 in microseconds have more digits than a float; NaN of none.

    Example:
        >>> exact("12.5"), exact("1778000000000001.125")
        (12.5, Decimal('1778000000000001.125'))
    """
    try:
        number = float(text) if len(text) <= _DIGITS else Decimal(text)
    except (ValueError, ArithmeticError):
        return NAN
    return number if isfinite(number) else NAN


def _escaped(raw: str) -> str:
    return _NAME.sub(lambda m: m[1] + re.sub(r'(?<!\\)"', r'\\"', m[2]) + m[3], raw, count=1)


def _position(error: Exception, default: int = 0) -> int:
    return error.pos if isinstance(error, json.JSONDecodeError) else default


def _incomplete(error: Exception, text: str) -> bool:
    """Tell whether more text might help: a string that does not end, or a fault among the last few characters."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - 12


def _unfinished(error: Exception, rest: str) -> bool:
    """Tell whether a fault at the end of the file is that it was cut: nothing is closed after it."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or not re.search(r"[}\]]", rest)


def text(raw: str) -> str:
    """Return a string that was decoded as Latin-1 as the UTF-8 that it is.

    Example:
        >>> text("Ã¼ber"), text("plain")
        ('über', 'plain')
    """
    if raw.isascii():
        return raw
    try:
        return raw.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return raw
