"""Names of sizes in a file to symbols or numbers."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

from roofline.frontends.onnx.read import MAX_SIZE
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.sizes import Size, symbol

#: What exporters call the batch and the sequence.
COMMON = {
    "B": ("batch", "batch_size", "batch_dim", "bs", "n", "b"),
    "S": ("sequence", "sequence_length", "seq", "seq_len", "seq_length", "seqlen", "sequence_len", "s"),
}
#: Parameters of the functions that also take sizes by name: no symbol may be called so.
RESERVED = frozenset({"chip", "graph", "mode", "reserve", "sizes", "tf32"})
_SYMBOLS = {name: letter for letter, names in COMMON.items() for name in names}


class Names:
    """Sizes by their names in the file.

    Args:
        sizes: A number, or the name of a symbol, by name in the file.

    Raises:
        UsageError: A size that is neither a whole number from 1 nor a name.
    """

    def __init__(self, sizes: Mapping[str, int | str]) -> None:
        for name, value in sizes.items():
            number = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIZE
            if not number and not (isinstance(value, str) and value.isidentifier()):
                raise UsageError(
                    f"sizes: {name}: expected a whole number from 1 or the name of a symbol, given {value!r}"
                )
        self.sizes = dict(sizes)
        self.known: dict[str, Size] = {}
        self.notes: dict[str, None] = {}
        self._used: set[str] = set()
        self._taken: dict[str, str] = {}

    def size(self, name: str) -> Size:
        """Return the size that a name in the file stands for."""
        if name not in self.known:
            self.known[name] = self._new(name)
        return self.known[name]

    def _new(self, name: str) -> Size:
        size = self.sizes.get(name)
        letter = _SYMBOLS.get(name.strip().lower(), "")
        if size is not None:
            self._used.add(name)
            return size if isinstance(size, int) else symbol(size)
        if letter and letter not in self._taken and letter not in self.sizes.values():
            self._taken[letter] = name
            if letter in self.sizes and name != letter:  # sizes={"B": 8} means the batch whatever the file calls it
                self._used.add(letter)
                value = self.sizes[letter]
                return value if isinstance(value, int) else symbol(value)
            if name != letter:
                self.notes[f"size {name} of the file is {letter}"] = None
            return symbol(letter)
        return self.free(name)

    def free(self, name: str) -> Size:
        """Return a new symbol, called like a name as far as Python allows."""
        text = re.sub(r"\W+", "_", name).strip("_") or "size"
        text = f"size_{text}" if text[0].isdigit() else text
        if keyword.iskeyword(text) or text in RESERVED:
            text = f"{text}_size"
        if text in self.sizes and isinstance(self.sizes[text], int):
            self._used.add(text)
            return int(self.sizes[text])
        if text != name:
            self.notes[f"size {name} of the file is {text}"] = None
        return symbol(text)

    def trip(self, *names: str) -> int | None:
        """Return how often a loop runs, where ``sizes`` says so under one of some names."""
        for name in names:
            value = self.sizes.get(name)
            if isinstance(value, int):
                self._used.add(name)
                return value
        return None

    def finish(self, where: str) -> None:
        """Refuse sizes that the file has no use for.

        Raises:
            UsageError: Names the nearest one that it has.
        """
        for name in self.sizes.keys() - self._used:
            near = did_you_mean(name, self.known)
            have = ", ".join(self.known) or "none"
            raise UsageError(f"sizes: {where} has no size {name!r}{near}; it has: {have[:300]}")
