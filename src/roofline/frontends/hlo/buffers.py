"""Where XLA puts a program's tensors: the ``*-buffer-assignment.txt`` of ``--xla_dump_to``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from roofline.ir.errors import ModelDataError
from roofline.ir.files import read_file, user_path

#: The longest text that is read [byte].
LONGEST_DUMP = 64 * 2**20
_ALLOCATION = re.compile(r"^allocation \d+: size (\d{1,18}),(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Buffers:
    """What XLA sets aside for a program, as ``memory_analysis()`` of a program that jax compiled says it.

    From :func:`roofline.frontends.read_buffers`.

    Attributes:
        arguments: Of what the program is given [byte].
        outputs: Of what it returns [byte].
        temporaries: Of everything between, which shares one block by offsets [byte].
        constants: Of what the program holds itself [byte].
    """

    arguments: int
    outputs: int
    temporaries: int
    constants: int


def read_buffers(path: str | os.PathLike[str]) -> Buffers:
    """Read a buffer assignment that XLA dumped.

    Args:
        path: The file, ``*-buffer-assignment.txt``.

    Returns:
        Bytes by what they hold; an output that is an argument, too, counts as the latter.

    Raises:
        ModelDataError: No such file, or it holds no buffer assignment.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "buffer-assignment.txt")
        ...     _ = file.write_text("BufferAssignment:\\nallocation 0: size 64, parameter 0, shape |f32[16]|:\\n")
        ...     read_buffers(file).arguments
        64
    """
    file = user_path(path, ModelDataError)
    what = "a *-buffer-assignment.txt that XLA dumped"
    text = read_file(file, LONGEST_DUMP, what, ModelDataError).decode("utf-8", "replace")
    sizes = dict.fromkeys(("parameter", "output", "temp", "constant", "other"), 0)
    rows = _ALLOCATION.findall(text)
    if not rows:
        raise ModelDataError(f"{file}: no line 'allocation N: size BYTES, ...'; expected {what}")
    for size, about in rows:
        said = next((key for key, word in _WORDS.items() if word in about), "other")
        sizes[said] += int(size)
    return Buffers(sizes["parameter"], sizes["output"], sizes["temp"], sizes["constant"])


#: How an allocation says what it holds, the first that fits.
_WORDS = {"parameter": " parameter ", "output": "maybe-live-out", "constant": " constant", "temp": "preallocated-temp"}
