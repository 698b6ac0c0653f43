"""What a reader chose: to and from the query of the page's address, so that a link holds everything."""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qsl, urlencode

from roofline.ir.errors import UsageError, did_you_mean

#: Characters of a text that is typed, of a file in a link, and of a whole link; and bytes of the file itself.
MAX_TEXT, MAX_PACKED, MAX_QUERY, MAX_FILE = 200, 24_000, 48_000, 512 * 1024
#: Largest trace that is dropped on the page [byte].
MAX_TRACE = 32 * 2**20
#: Chips that are compared at most; figures of a chip that are altered at most.
MAX_AGAINST, MAX_FIGURES = 8, 60
#: What names an altered figure in a link: ``chip.memory_bandwidth``.
_FIGURE = "chip."
#: Files that describe a program and are never run.
SUFFIXES = (".toml", ".json")


@dataclass(frozen=True, slots=True)
class State:
    """What a page shows; every value is a text as it was typed, empty where the default holds.

    Attributes:
        model: A shipped name, or one of the user's folders.
        file: A file that describes the program instead, packed (:func:`pack`).
        phase: Of the program.
        dtype: Number format of everything.
        weights: Number format of the weights.
        activations: Number format that matmuls take their inputs in.
        cache: Number format of the KV cache.
        batch: A whole number.
        seq: Prompt in prefill, context in decode, sequence in forward.
        context: Of a decoder beside an encoder.
        chip: A shipped name, or one of the user's folders.
        tp: Devices that share every layer.
        mode: How it runs.
        figures: Altered figures of the chip by name.
        against: Names of chips that it is compared with, with commas.
        memory_limit: What a batch may need.
        latency_limit: What one run may take.
        measured: The measured time of one run.
    """

    model: str = "llama-3-8b"
    file: str = ""
    phase: str = "decode"
    dtype: str = ""
    weights: str = ""
    activations: str = ""
    cache: str = ""
    batch: str = "8"
    seq: str = "2048"
    context: str = ""
    chip: str = "h100-sxm"
    tp: str = "1"
    mode: str = "graph"
    figures: tuple[tuple[str, str], ...] = ()
    against: str = "h200-sxm,a100-80gb-sxm,mi300x"
    memory_limit: str = ""
    latency_limit: str = ""
    measured: str = ""

    def query(self) -> str:
        """Return what differs from the defaults as the query of an address; empty where nothing does.

        Example:
            >>> State(batch="64", figures=(("memory_bandwidth", "4 TB/s"),)).query()
            '?batch=64&chip.memory_bandwidth=4+TB%2Fs'
        """
        texts = {name: getattr(self, name) for name in TEXTS if getattr(self, name) != getattr(DEFAULT, name)}
        altered = {f"{_FIGURE}{name}": value for name, value in self.figures}
        return f"?{urlencode(texts | altered)}" if texts or altered else ""


#: Fields that are one text.
TEXTS = tuple(field.name for field in fields(State) if field.name != "figures")
DEFAULT = State()


def from_query(query: str) -> State:
    """Read the query of an address.

    Raises:
        UsageError: An unknown or repeated key, or a text that is too long.

    Example:
        >>> from_query("?batch=64&chip.memory_bandwidth=4+TB%2Fs").figures
        (('memory_bandwidth', '4 TB/s'),)
    """
    if len(query) > MAX_QUERY:
        raise UsageError(f"the link has {len(query):,} characters; allowed: at most {MAX_QUERY:,}")
    try:
        pairs = parse_qsl(query.removeprefix("?"), keep_blank_values=True, max_num_fields=len(TEXTS) + MAX_FIGURES)
    except ValueError:
        raise UsageError("the link has too many values") from None
    return from_texts(dict(pairs)) if len(dict(pairs)) == len(pairs) else _refuse_repeated(pairs)


def _refuse_repeated(pairs: list[tuple[str, str]]) -> State:
    names = [name for name, _ in pairs]
    repeated = next(name for name in names if names.count(name) > 1)
    raise UsageError(f"the link gives {repeated[:60]!r} twice")


def from_texts(texts: Mapping[str, str]) -> State:
    """Make a state of texts by name; the names of altered figures begin with ``chip.``.

    Raises:
        UsageError: An unknown name, or a text that is too long.
    """
    plain = {name: value for name, value in texts.items() if not name.startswith(_FIGURE)}
    for name, value in texts.items():
        if name in plain and name not in TEXTS:
            raise UsageError(f"the link has an unknown key {name[:60]!r}{did_you_mean(name, TEXTS)}")
        if len(value) > (MAX_PACKED if name == "file" else MAX_TEXT) or len(name) > MAX_TEXT:
            raise UsageError(f"{name[:60]}: {len(value):,} characters; allowed: at most {MAX_TEXT}")
    figures = ((name.removeprefix(_FIGURE), value) for name, value in texts.items() if name not in plain)
    return replace(DEFAULT, figures=tuple(sorted(figures)), **plain)


# --- a file in a link -------------------------------------------------------------------------------------------------


def pack(name: str, data: bytes) -> str:
    """Pack a small text file, so that a link can hold it.

    Args:
        name: What the file is called; its suffix says what it is.
        data: Its contents.

    Raises:
        UsageError: Another suffix than those of model files and configs, no text, or too large.

    Example:
        >>> unpack(pack("folder/mine.toml", b"name = 'mine'"))
        ('mine.toml', "name = 'mine'")
    """
    short = name.replace("\\", "/").rpartition("/")[2]
    if not short.lower().endswith(SUFFIXES):
        raise UsageError(f"{short[:60]!r}: a program is described by a model .toml or a config.json; no script is run")
    if len(data) > MAX_FILE:
        raise UsageError(f"{short[:60]}: {len(data):,} bytes; allowed: at most {MAX_FILE:,}")
    stem, suffix = os.path.splitext(_safe(short))
    packed = f"{stem or 'file'}{suffix}~{base64.urlsafe_b64encode(zlib.compress(data, 9)).decode()}"
    if len(packed) > MAX_PACKED:
        raise UsageError(f"{short[:60]}: too large for a link, which must hold it; give its path to roofline instead")
    unpack(packed)
    return packed


def unpack(packed: str) -> tuple[str, str]:
    """Return the name and the contents of a packed file, of which no more than the limit is ever unfolded.

    Raises:
        UsageError: No packed file.
    """
    name, _, body = packed.partition("~")
    try:
        worker = zlib.decompressobj()
        data = worker.decompress(base64.b64decode(body.encode("ascii"), b"-_", validate=True), MAX_FILE)
        if not worker.eof or not name.lower().endswith(SUFFIXES) or _safe(name) != name:
            raise ValueError
        return name, data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{name[:60]}: no text in UTF-8") from None
    except (ValueError, zlib.error, binascii.Error):
        raise UsageError("file: the link is damaged; upload the file once more") from None


def _safe(name: str) -> str:
    """Return a name as a file may be called anywhere."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[-80:].lstrip("-")
