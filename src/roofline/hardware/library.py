"""Find chip, cluster and model files: by name, alias or path, the user's folders before the shipped ones.

The environment variable ``ROOFLINE_PATH`` lists folders, separated like ``PATH``; each holds TOML files
itself or in subfolders ``chips``, ``clusters`` and ``models``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Literal, NoReturn

from roofline.hardware.chip import Chip, load_chip
from roofline.ir.datafile import read_toml
from roofline.ir.errors import ChipDataError, UnknownChip, UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.text import shown
from roofline.ir.units import parse

#: No host is so many times faster or slower than the one that a chip's file tells of.
FASTEST_HOST = 1000.0
#: What every function takes that takes a chip.
AnyChip = str | os.PathLike[str] | Chip

Kind = Literal["chips", "clusters", "models", "measurements"]


def data_dir(kind: Kind) -> Path:
    """Return the folder of the shipped files: inside an installed package, or at the top of a checkout."""
    packaged = Path(__file__).parents[1] / "_data" / kind
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / kind


def data_file(kind: Kind, name: str) -> Path:
    """Return a shipped file."""
    return data_dir(kind) / name


def folders(kind: Kind) -> list[Path]:
    """Return the folders that a name of this kind is searched in, first match first."""
    entries = os.environ.get("ROOFLINE_PATH", "").split(os.pathsep)
    paths = [Path(os.path.expanduser(entry)) for entry in entries if entry]
    return [folder / kind if (folder / kind).is_dir() else folder for folder in paths] + [data_dir(kind)]


def files(kind: Kind) -> dict[str, Path]:
    """Return all TOML files of a kind by stem; a user's file hides the shipped one of the same stem."""
    index: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted(folder.glob("*.toml")):
            if path.is_file():
                index.setdefault(path.stem, path)
    return index


def find_file(kind: Kind, name: str) -> Path | None:
    """Return the file whose stem is ``name``, however spelled, without reading any file."""
    stem = re.sub(r"[\s_]+", "-", name.strip().lower())
    if not re.fullmatch(r"[a-z0-9.+-]{1,100}", stem):
        return None
    paths = (folder / f"{stem}.toml" for folder in folders(kind))
    return next((path for path in paths if path.is_file()), None)


def spelling(name: str) -> str:
    """Reduce a name to what is compared: no case, spaces, dashes or underscores.

    Example:
        >>> spelling("NVIDIA A100-SXM4-80GB") == spelling("nvidia_a100 sxm4 80gb")
        True
    """
    return re.sub(r"[\s_-]+", "", name.lower())


def is_path(name: str | os.PathLike[str]) -> bool:
    """Tell a file's path from a name: a path object, or text that ends in ``.toml`` or has a separator.

    Example:
        >>> is_path("chips/mine"), is_path("mine.toml"), is_path("h100-sxm")
        (True, True, False)
    """
    if not isinstance(name, str):
        return True
    return name.lower().endswith(".toml") or (" / " not in name and ("/" in name or os.sep in name))


def several(name: str, names: Iterable[str]) -> str:
    """Say what ``name`` may have meant: all names that begin with it, or else the near ones."""
    key = spelling(name)
    begin = sorted({other for other in names if key and spelling(other).startswith(key)})
    if len(begin) > 1:
        return f" matches several: {', '.join(begin)}; name one"
    return did_you_mean(name, begin or names)


def chip(name: AnyChip) -> Chip:
    """Return a chip.

    Args:
        name: A name or alias in any spelling, a framework's device string, a TOML file's path, or a chip.

    Returns:
        The chip, with every figure and its source.

    Raises:
        UnknownChip: No chip of that name, or several; none is ever picked for you.
        ChipDataError: A file that does not describe a chip.

    Example:
        >>> chip("NVIDIA A100-SXM4-80GB").name
        'a100-80gb-sxm'
        >>> chip("h100")
        Traceback (most recent call last):
        roofline.ir.errors.UnknownChip: chip 'h100' matches several: h100-nvl, h100-pcie, h100-sxm; name one
    """
    if isinstance(name, Chip):
        return name
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"chip: expected a name, a path or a Chip, given {str(name)[:100]!r}")
    if not isinstance(name, str) or is_path(name):
        return load_chip(name)
    path = find_file("chips", name) or find_alias("chips", name, _without_vendor)
    if path is None:
        _refuse(name, chips())
    return load_chip(path)


def chip_list(names: AnyChip | Sequence[AnyChip]) -> tuple[Chip, ...]:
    """Return the chips of one name or of a sequence of them.

    Raises:
        UsageError: Neither, or an empty sequence.
        UnknownChip: No chip of one of the names.
    """
    if isinstance(names, str | os.PathLike | Chip) or not isinstance(names, Iterable):
        return (chip(names),)
    if not (listed := tuple(chip(name) for name in names)):
        raise UsageError("no chip given; name at least one")
    return listed


def with_host(device: Chip, host: str | float | os.PathLike[str] | None) -> Chip:
    """Return a chip whose eager programs another host runs.

    Args:
        device: The chip.
        host: A factor on the time that its file gives a call of the host (0.5 is twice as fast), or a TOML file with
            ``host`` in its ``[efficiency]``, as ``roofline calibrate`` writes on that machine; the chip's own where
            absent.

    Raises:
        UsageError: No factor above zero, or a file without the figure.

    Example:
        >>> with_host(chip("h100-sxm"), 0.5).efficiency.host
        1.085e-05
    """
    if host is None:
        return device
    own = device.efficiency
    seconds = _host_seconds(host, own.host)
    return device.model_copy(update={"efficiency": own.model_copy(update={"host": seconds})})


def _host_seconds(host: str | float | os.PathLike[str], own: float) -> float:
    if not isinstance(host, Real | str | os.PathLike) or not str(host).strip():
        what = "is empty" if isinstance(host, str) else f"{shown(host)} is neither"
        raise UsageError(f"host {what}: give a factor, such as 0.5, or the file that roofline calibrate wrote")
    try:
        factor = float(host)  # type: ignore[arg-type]
    except OverflowError:
        factor = math.inf
    except (TypeError, ValueError):
        table = read_toml(user_path(host), UsageError).get("efficiency")
        if not isinstance(table, dict) or "host" not in table:
            raise UsageError(f"{host}: no host in [efficiency], which roofline calibrate writes") from None
        seconds = parse(table["host"], "s", f"{host}: efficiency.host")
        if seconds <= 0:
            raise UsageError(f"{host}: efficiency.host={table['host']}: a time above zero, such as 20 us") from None
        return seconds
    if not 1 / FASTEST_HOST <= factor <= FASTEST_HOST:
        raise UsageError(
            f"host={shown(host)}: a factor is from {1 / FASTEST_HOST:g} to {FASTEST_HOST:g}, "
            "such as 0.5 for twice the speed"
        )
    return own * factor


def _refuse(name: str, known: list[str]) -> NoReturn:
    near = several(_without_vendor(name), known)
    if not near.startswith(" matches"):
        near = f" is not known{near or f'; allowed: {len(known)} names, see roofline.chips(), or a TOML file'}"
    raise UnknownChip(f"chip {name[:100]!r}{near}")


def _without_vendor(name: str) -> str:
    """Reduce a chip's name further: device strings of different drivers differ in the vendor's words."""
    return _VENDOR.sub("", spelling(name))


_VENDOR = re.compile("^(nvidia|amd|intel|google|aws|apple|qualcomm|tenstorrent|tesla|geforce|instinct)+")


def chips() -> list[str]:
    """Return the names of all chips, sorted.

    Returns:
        The names, as :func:`chip` takes them.

    Example:
        >>> "h100-sxm" in chips()
        True
    """
    return sorted(files("chips"))


def find_alias(kind: Kind, name: str, reduced: Callable[[str], str] = spelling) -> Path | None:
    """Return the file that has ``name`` as its name or among its aliases, compared as ``reduced`` makes them."""
    return _aliases(_stamp(kind), reduced).get(reduced(name))


def _stamp(kind: Kind) -> tuple[tuple[str, int], ...]:
    """Return what an index of names depends on: the files and when they changed."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in files(kind).values())


@lru_cache(maxsize=8)
def _aliases(stamp: tuple[tuple[str, int], ...], reduced: Callable[[str], str]) -> dict[str, Path]:
    """Index files by every name and alias they give; the user's come first and win."""
    index: dict[str, Path] = {}
    for text, _ in stamp:
        table = read_toml(Path(text), ChipDataError)
        aliases = table.get("aliases", [])
        names = [Path(text).stem, table.get("name", text), *(aliases if isinstance(aliases, list) else [])]
        for name in names:
            index.setdefault(reduced(str(name)), Path(text))
    return index
