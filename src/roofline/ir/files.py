"""Paths and files: what a path may be, how much of a file is read, and how one is written without harm.

Every path that somebody gives goes through :func:`user_path`, every small file through :func:`read_file`, and what is
written through :func:`whole_file`.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.text import shown


def user_path(path: Any, error: type[RooflineError] = UsageError) -> Path:
    """Return a path as somebody gave it, with ``~`` and ``~user`` expanded.

    Args:
        path: Text or a path.
        error: What to raise where it names no file.

    Raises:
        UsageError: Neither text nor a path.
        RooflineError: As ``error`` says: no such user, or characters that no file's name has.

    Example:
        >>> user_path("chips/mine.toml").name
        'mine.toml'
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"expected the path of a file, given {shown(path)}")
    try:
        text = os.fsdecode(path)
        if b"\0" in os.fsencode(text):
            raise ValueError
    except ValueError:
        raise error(f"{shown(path)}: no such file; no file can be called so") from None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.partition(os.sep)[0]
        raise error(f"{text}: there is no user {shown(user[1:])}; ./{user} names a file") from None


def fault_of(path: Path) -> str:
    """Say why a path is no file to be read; empty where it is one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "no such file"
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    return "" if stat.S_ISREG(mode) else "a directory" if stat.S_ISDIR(mode) else "not a file"


def read_file(path: Path, most: int, what: str, error: type[RooflineError]) -> bytes:
    """Return the contents of a regular file, of which no more than ``most`` bytes are ever read.

    Args:
        path: The file.
        most: The largest that is read [byte].
        what: What it should be, for the message.
        error: What to raise.
    """
    if fault := fault_of(path):
        raise error(f"{path}: {fault}; expected {what}")
    try:
        with open(path, "rb") as stream:
            data = stream.read(most + 1)
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from None
    if len(data) > most:
        raise error(f"{path}: {os.path.getsize(path)} bytes; allowed: at most {most}")
    return data


# --- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(target: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[Any]:
    """Open a file that takes its place only when it was written to its end.

    Links are followed, and an old file's mode and owner stay. What is no regular file (a pipe, a device), or has other
    names as well, stays what it is and takes in the contents at the end.

    Args:
        target: The file; the contents of an old one are replaced.
        mode: Text in UTF-8, or bytes.

    Yields:
        The open file.

    Raises:
        UsageError: It cannot be written there.
    """
    path = user_path(target)
    text: dict[str, Any] = {"encoding": "utf-8", "newline": "", "errors": "backslashreplace"} if mode == "w" else {}
    try:
        state = _state(path)
        if _is_replaced(path, state):
            with _replacing(Path(os.path.realpath(path)), state) as handle, open(handle, mode, **text) as stream:
                yield stream
        else:
            with tempfile.TemporaryFile(f"{mode}+", **text) as stream:
                yield stream
                stream.flush()
                _write_through(stream.fileno(), path)
    except OSError as problem:
        raise UsageError(f"{path}: cannot be written: {problem.strerror or problem}") from None


def _state(path: Path) -> os.stat_result | None:
    """Return the state of what is written to, ``None`` where there is nothing yet.

    Raises:
        OSError: It cannot be written.
    """
    if str(path) == "-":
        raise OSError(22, "'-' is the standard output, which this does not take; ./- names a file")
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        raise FileNotFoundError(2, f"there is no directory {str(parent)!r}")
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(21, "a directory; name a file")
    if not os.access(path, os.W_OK):
        raise PermissionError(13, "Permission denied")
    return state


def _is_replaced(path: Path, state: os.stat_result | None) -> bool:
    """Tell whether a new file may take the name of what is there: of a regular file that no other name refers to."""
    if state is None:
        return True
    alone = stat.S_ISREG(state.st_mode) and state.st_nlink == 1
    is_descriptor = os.path.abspath(path).startswith(("/dev/", "/proc/"))  # /dev/stdout may be a file that is open
    return alone and not is_descriptor and os.access(Path(os.path.realpath(path)).parent, os.W_OK)


@contextmanager
def _replacing(path: Path, state: os.stat_result | None) -> Iterator[int]:
    """Open a new file beside a path, and give it the path's name and mode at the end, or take it away."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
        yield handle
        if state is None:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        else:
            with suppress(OSError, AttributeError):  # only root may give a file away, and not on every system
                os.chown(name, state.st_uid, state.st_gid)
            os.chmod(name, stat.S_IMODE(state.st_mode))
        os.replace(name, path)
    except BaseException:
        if name:
            Path(name).unlink(missing_ok=True)
        raise


def _write_through(source: int, path: Path) -> None:
    """Copy an open file into what is there, whatever that is."""
    with open(source, "rb", closefd=False) as finished, open(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
        finished.seek(0)
        shutil.copyfileobj(finished, stream)
