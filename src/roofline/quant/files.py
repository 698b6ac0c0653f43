"""Weights in files without code: safetensors and numpy's npz, read within limits; and what was rounded, written.

safetensors is eight bytes with the length of a JSON header, the header, and the data that it points into
(https://github.com/huggingface/safetensors, "Format"); bf16 and fp8, which numpy has not, are read as numbers.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.files import fault_of, user_path, whole_file
from roofline.ir.text import shown
from roofline.ops.elements import E4M3, E5M2, Array
from roofline.ops.rounding import Quantized, number_format
from roofline.quant.arrays import by_name
from roofline.quant.recipes import QuantizedModel

#: Header of a safetensors file, as its own library limits it [byte].
_MOST_HEADER = 25_000_000
#: An array of an npz [byte].
_MOST_ARRAY = 2**36
_DTYPES: dict[str, Any] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "I64": "<i8",
    "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_FLOATS = {"F8_E4M3": E4M3, "F8_E5M2": E5M2}
_ABOUT = "__about__"
#: Start and end.
_ENDS = 2


def read_weights(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """Return the arrays of a file, or of all safetensors files of a folder, by name; each is read when it is looked up.

    Raises:
        UsageError: No such file, or none of these.
    """
    file = user_path(path)
    if file.is_dir():
        parts = sorted(file.glob("*.safetensors"))
        if not parts:
            raise UsageError(f"{file}: a folder without *.safetensors")
        return _Arrays({name: place for part in parts for name, place in _header(part)[0].items()})
    if fault := fault_of(file):
        raise UsageError(f"{file}: {fault}; expected weights as .safetensors or .npz")
    if file.suffix.lower() == ".npz":
        return _Zipped(file)
    if file.suffix.lower() != ".safetensors":
        raise UsageError(
            f"{file}: expected .safetensors, .npz or a folder of them; what torch.save writes may run code: save "
            "with safetensors.torch.save_file(module.state_dict(), 'weights.safetensors')"
        )
    return _Arrays(_header(file)[0])


@dataclass(frozen=True)
class _Place:
    """Where an array lies in a safetensors file."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * int(np.dtype(_DTYPES[self.kind]).itemsize)

    def read(self) -> Array:
        if not self.bytes:
            return np.zeros(self.shape)
        shape = (math.prod(self.shape),)
        flat = np.asarray(np.memmap(self.path, dtype=_DTYPES[self.kind], mode="r", offset=self.start, shape=shape))
        if self.kind == "BF16":
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        if self.kind in _FLOATS:
            flat = _FLOATS[self.kind].decode(flat)
        return flat.reshape(self.shape)


class _Arrays(Mapping[str, Array]):
    """Arrays in safetensors files."""

    def __init__(self, places: dict[str, _Place]) -> None:
        self.places = places

    def __getitem__(self, name: str) -> Array:
        return self.places[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _header(path: Path) -> tuple[dict[str, _Place], dict[str, str]]:
    """Return where each array lies, and the file's own remarks; what points outside is refused."""
    problem = UsageError(f"{path}: no sound safetensors file")
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_MOST_HEADER, size - 8):
                raise problem
            table = json.loads(stream.read(length))
    except (OSError, ValueError, RecursionError):
        raise problem from None
    if not isinstance(table, dict):
        raise problem
    remarks = table.pop("__metadata__", {})
    return {str(name): _entry(path, name, each, 8 + length, size) for name, each in table.items()}, remarks


def _entry(path: Path, name: str, entry: Any, start: int, size: int) -> _Place:
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, ends = fields.get("dtype"), fields.get("shape", ""), fields.get("data_offsets", "")
    if kind not in _DTYPES:
        raise UsageError(f"{path}: {shown(name)} is in {shown(kind)}; allowed: {', '.join(_DTYPES)}")
    numbers = [*shape, *ends] if isinstance(shape, list) and isinstance(ends, list) and len(ends) == _ENDS else [-1]
    if all(type(each) is int and 0 <= each < 2**48 for each in numbers):
        place = _Place(path, str(kind), tuple(shape), start + ends[0])
        if place.bytes == ends[1] - ends[0] and start + ends[1] <= size:
            return place
    raise UsageError(f"{path}: {shown(name)} does not lie in the file")


class _Zipped(Mapping[str, Array]):
    """Arrays of numpy's npz; pickled objects are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
            raise UsageError(f"{path}: no sound npz file") from None
        self.members = members

    def __getitem__(self, name: str) -> Array:
        member = self.members[name]
        if member.file_size > _MOST_ARRAY:
            raise UsageError(f"{self.path}: {shown(name)} has {member.file_size} bytes; allowed: at most {_MOST_ARRAY}")
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                old = version == (1, 0)
                read: Any = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
                shape, order, dtype = read(stream)
                if dtype.hasobject or math.prod(shape) * dtype.itemsize > member.file_size:
                    raise ValueError
                flat = np.frombuffer(stream.read(math.prod(shape) * dtype.itemsize), dtype=dtype)
                return flat.reshape(shape, order="F" if order else "C")
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, SyntaxError):
            raise UsageError(f"{self.path}: {shown(name)} is no sound array of numbers") from None
        except Exception as error:  # zlib's own
            if type(error).__module__ != "zlib":
                raise
            raise UsageError(f"{self.path}: {shown(name)} is damaged") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)


# --- what was rounded ------------------------------------------------------------------------------------------------


def save(model: QuantizedModel | Mapping[str, Quantized], path: str | os.PathLike[str]) -> Path:
    """Write rounded weights as codes and scales: no code, no pickle.

    For a weight ``w`` the file has ``w.codes`` (one element a byte, or two of up to 4 bits, the first in the low half),
    ``w.scale`` and ``w.zero`` (fp32, which holds every format of scales), and says once the format, shape and axis.

    Args:
        model: What was rounded, or its weights by name.
        path: A ``.safetensors`` or ``.npz`` file; written whole or not at all.

    Returns:
        The path of the file.

    Raises:
        UsageError: Another kind of file, or it cannot be written.

    Example:
        >>> import tempfile
        >>> from roofline.quant import load, round_to
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = save({"w": round_to(np.eye(4, 32), "int4-g32")}, folder + "/small.npz")
        ...     load(file)["w"].codes[0, :3].tolist()
        [15, 0, 0]
    """
    file, weights = user_path(path), model.weights if isinstance(model, QuantizedModel) else model
    arrays: dict[str, Array] = {}
    about = {}
    for name, q in by_name(weights, "save").items():
        if not isinstance(q, Quantized):
            raise UsageError(f"save: {name!r} is {shown(q)}; expected what round_to returns")
        arrays[f"{name}.codes"] = _packed(q)
        arrays[f"{name}.scale"] = np.ascontiguousarray(q.scale, dtype=np.float32)
        if q.zero is not None:
            arrays[f"{name}.zero"] = np.ascontiguousarray(q.zero, dtype=np.float32)
        shape, axis = list(q.shape), list(q.axis)
        about[name] = {"format": q.format.name, "shape": shape, "axis": axis, "tensor_scale": q.tensor_scale}
    if file.suffix.lower() == ".npz":
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        with whole_file(file, "wb") as stream:
            np.savez(stream, **{_ABOUT: text, **arrays})
    elif file.suffix.lower() == ".safetensors":
        _write(file, arrays, {"roofline": json.dumps(about)})
    else:
        raise UsageError(f"{file}: rounded weights are written as .safetensors or .npz")
    return file


def load(path: str | os.PathLike[str]) -> dict[str, Quantized]:
    """Read rounded weights that :func:`save` wrote.

    Args:
        path: The file.

    Returns:
        The weights by name: codes, scales, zero points; ``.values`` are numbers again.

    Raises:
        UsageError: No such file, or not one of these.

    Example:
        >>> load("none.npz")
        Traceback (most recent call last):
        roofline.ir.errors.UsageError: none.npz: no such file; expected weights as .safetensors or .npz
    """
    file, arrays = user_path(path), read_weights(path)
    problem = UsageError(f"{file}: holds no rounded weights of roofline.quant.save")
    try:
        if isinstance(arrays, _Arrays):
            about = json.loads(_header(file)[1]["roofline"])
        else:
            about = json.loads(arrays[_ABOUT].tobytes())
        return {str(name): _read(arrays, name, each) for name, each in about.items()}
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError, RooflineError):
        raise problem from None


def _read(arrays: Mapping[str, Array], name: str, about: Any) -> Quantized:
    form, shape = number_format(about["format"]), tuple(map(int, about["shape"]))
    codes = arrays[f"{name}.codes"]
    if form.element.bits <= _HALF:
        codes = np.stack([codes & 15, codes >> _HALF], axis=-1).reshape(-1)[: math.prod(shape)]
    if form.symmetric and form.element.name.startswith("int"):
        signed = codes.astype(np.int8)
        codes = (signed << _HALF >> _HALF) if form.element.bits <= _HALF else signed
    scale, zero = arrays[f"{name}.scale"], arrays.get(f"{name}.zero")
    scale, zero = (None if each is None else np.asarray(each, dtype=np.float64) for each in (scale, zero))
    return Quantized(form, codes.reshape(shape), scale, zero, tuple(about["axis"]), float(about["tensor_scale"]))


#: Bits of half a byte [bit].
_HALF = 4


def _packed(q: Quantized) -> Array:
    """Return codes one a byte, or flat and two a byte where they fit."""
    if q.format.element.bits > _HALF:
        return np.ascontiguousarray(q.codes)
    flat = q.codes.reshape(-1).astype(np.uint8) & 15
    pairs = np.append(flat, np.zeros(len(flat) % 2, np.uint8)).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << _HALF


def _write(file: Path, arrays: Mapping[str, Array], remarks: Mapping[str, str]) -> None:
    names = {"<f4": "F32", "|i1": "I8", "|u1": "U8"}
    table: dict[str, Any] = {"__metadata__": remarks}
    at = 0
    for name, each in arrays.items():
        end = at + each.nbytes
        table[name] = {"dtype": names[each.dtype.str], "shape": list(each.shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    with whole_file(file, "wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for each in arrays.values():
            stream.write(each.tobytes())
