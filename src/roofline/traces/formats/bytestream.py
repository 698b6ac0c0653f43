"""Bytes of a file as they come: unpacked where they are gzip, and said so where they break off."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

from roofline.ir.errors import TraceError, UsageError
from roofline.ir.files import user_path

#: Called with the bytes read so far and the bytes in all.
Progress = Callable[[int, int], object]

#: Bytes read from the disk, and the most that leave the unpacker, at a time.
CHUNK = 2**18

#: What unfolds to more than this, and to this many times its size, is no profiler's file: those shrink 10 to 50 times.
MAX_UNFOLDED, MAX_RATIO = 2**27, 200

_GZIP = b"\x1f\x8b"


class ByteStream(io.RawIOBase):
    """A file, unpacked by its first bytes rather than by its name, so that a bomb of zeros costs time and no memory.

    Attributes:
        name: The file, as errors name it.
        fault: Why it ended before its end, empty while nothing is wrong.
        unended: Whether its last line has no end, as that of a file that was cut.
    """

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"expected the path of a trace, given {repr(path)[:60]}")
        self.name = os.fspath(path)
        self.fault = ""
        self.unended = False
        self._progress = progress
        self._file = _open(self.name)
        self._size = os.fstat(self._file.fileno()).st_size
        self._done = 0
        self._unfolded = 0
        self._packed = b""
        self._ended = False
        self._unpacker: Any = zlib.decompressobj(31) if self._file.peek(2)[:2] == _GZIP else None
        self._ahead = b""

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        self.close()

    def readable(self) -> bool:
        """Return ``True``: it can always be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as :mod:`io` wants it."""
        data = self.chunk(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def head(self, size: int) -> bytes:
        """Return the first bytes, which are read again afterwards."""
        while len(self._ahead) < size and (data := self._next(CHUNK)):
            self._ahead += data
        return self._ahead[:size]

    def chunk(self, size: int = CHUNK) -> bytes:
        """Return some bytes, at most ``size``; none at the end."""
        if not self._ahead:
            return self._next(min(size, CHUNK))
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def _next(self, size: int) -> bytes:
        if self._unpacker is None:
            return self._raw(size)
        while not self.fault and not self._ended:
            try:
                data: bytes = self._unpacker.decompress(self._packed, size)
            except zlib.error:
                self.fault = f"the gzip stream is damaged near byte {self._done:,}"
                break
            self._packed = self._unpacker.unconsumed_tail
            self._count(len(data))
            if data or (not self._packed and not self._refill()):
                return data
        return b""

    def _count(self, size: int) -> None:
        self._unfolded += size
        if self._unfolded > max(MAX_UNFOLDED, MAX_RATIO * self._done):
            times = f"{MAX_UNFOLDED:,} bytes and {MAX_RATIO} times its size"
            raise TraceError(f"{self.name[:200]}: unfolds to more than {times}; no profiler's file does")

    def _refill(self) -> bool:
        """Fetch packed bytes; ``False`` where there are none. A file may hold several packed streams in a row."""
        if self._unpacker.eof:
            self._packed = self._unpacker.unused_data or self._raw(CHUNK)
            self._ended = self._packed[:2] != _GZIP
            self._unpacker = zlib.decompressobj(31)
            return not self._ended
        self._packed = self._raw(CHUNK)
        if not self._packed:
            self.fault = "the gzip stream is cut"
        return bool(self._packed)

    def _raw(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise TraceError(f"{self.name[:200]}: cannot be read: {error.strerror or error}") from None
        self._done += len(data)
        if self._progress is not None:
            self._progress(self._done, max(self._size, self._done))
        return data


def _open(name: str) -> io.BufferedReader:
    path = user_path(name, TraceError)
    try:
        if path.is_dir():
            raise TraceError(f"{name[:200]}: a directory; name one file of it")
        return open(path, "rb")
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, TraceError):
            raise
        what = getattr(error, "strerror", None) or error
        raise TraceError(f"{name[:200]}: cannot be read: {what}") from None
