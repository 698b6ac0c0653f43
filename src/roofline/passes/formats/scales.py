"""What a quantised tensor is stored in: the words that people use to formats with their scales, for rows of a length.

| word | stored as | as in |
|---|---|---|
| ``int8`` weights | a 16-bit scale per row | LLM.int8, gpt-fast, W8A8 kernels |
| ``int4`` weights | groups of 128 (64, 32 where 128 does not divide), 16-bit scale and zero | GPTQ, AWQ, tinygemm |
| ``fp8`` weights | a 32-bit scale per row | ``torch._scaled_mm`` by row, compressed-tensors |
| ``fp4`` weights | ``mxfp4`` | OCP Microscaling |
| ``int8``, ``fp8`` activations | a 32-bit scale per row, or none to store where it is static | vLLM, TensorRT-LLM |
| ``int8``, ``int4`` cache | a 16-bit scale (int4: and zero) a token and head; none where static | KIVI, LMDeploy |
| ``fp8`` cache | one scale, which is not counted | vLLM |

A group must divide the rows: GPTQ's and AWQ's kernels, llama.cpp and the Microscaling units refuse other rows, too.
Blocks that are counted over the whole matrix (``nf4``, ``fp8-block``) pad the last one, as bitsandbytes and DeepSeek-V3
do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import log

from roofline.ir.dtypes import DTYPES, DType
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UnknownDType, UsageError, did_you_mean

#: Formats of activations, and the units that multiply them.
ACTIVATIONS: dict[str, str] = {"int8": "int8", "fp8": "fp8", "mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
#: Formats of a KV cache.
CACHES = ("int8", "fp8", "int4")
#: Blocks over the whole matrix instead of along its rows.
_OVER_ALL = frozenset({"nf4", "nf4-dq", "fp8-block"})
#: Formats with a zero point, or a minimum, for each group; ``-zN`` says so itself.
_WITH_ZERO = frozenset({"int4-g32", "int4-g64", "int4-g128", "q4_1", "q5_1", "q2_k", "q4_k", "q5_k"})
#: A group-wise format that leaves its zero point open: 16 bits, as ``int4-g128`` has.
_OPEN = re.compile(r"int[2-8]-g[1-9]\d{0,8}")
_GROUP = re.compile(r"(?P<head>[a-z]+\d)-g(?P<group>\d+)(?P<tail>(?:-.+)?)")
#: Groups of plain ``int4`` weights, the first that divides a row.
_INT4_GROUPS = (128, 64, 32)
_WHOLE = "-tensor"
#: What is narrow enough to quantise to [bit].
_NARROW = 8


def weight_format(word: str, row: int, where: str = "weights") -> str:
    """The format that weights with rows of ``row`` elements are stored in.

    Args:
        word: A narrow format; ``int8``, ``int4``, ``fp8`` and ``fp4`` get the scales of the table above, with
            ``-tensor`` behind it one for the whole, which is not counted.
        row: Elements that are summed over [elements].
        where: Named in errors.

    Raises:
        UnknownDType: No such format.
        UsageError: Not a narrow format, or groups that do not divide the row.

    Example:
        >>> weight_format("int8", 4096), weight_format("int4", 14336), weight_format("int4-g256", 4096)
        ('int8-g4096-sym', 'int4-g128', 'int4-g256-z16')
    """
    if isinstance(word, str) and word.endswith(_WHOLE) and word.removesuffix(_WHOLE) in ("int8", "int4", "fp8"):
        return word.removesuffix(_WHOLE)
    name = _known(word).name
    if name not in _OVER_ALL and DTYPES[name].group == 0:
        plain = _PLAIN_WEIGHTS.get(name)
        if plain is None or DTYPES[name].bits > _NARROW:
            _refuse("weights", word, [*_PLAIN_WEIGHTS, "int4-g128", "nf4", "mxfp4", "nvfp4"])
        assert plain is not None
        return plain(row)
    _check_group(name, row, where)
    return name


def activation_format(word: str, row: object, scales: str) -> str:
    """The format of quantised activations with rows of ``row`` elements.

    Raises:
        UsageError: Not one that matmuls take activations in.

    Example:
        >>> activation_format("fp8", 4096, "dynamic"), activation_format("fp8", 4096, "static")
        ('fp8-g4096-sym-s32', 'fp8')
    """
    name = _known(word).name
    if name not in ACTIVATIONS:
        _refuse("activations", word, ACTIVATIONS)
    if DTYPES[name].group and isinstance(row, int):
        _check_group(name, row, "activations")
    rowwise = scales == "dynamic" and not DTYPES[name].group and isinstance(row, int)
    return f"{name}-g{row}-sym-s32" if rowwise else name


def cache_format(word: str, width: object, scales: str) -> str:
    """The format of a KV cache with ``width`` elements per token and head.

    Raises:
        UsageError: Not one that caches are kept in.

    Example:
        >>> [cache_format(word, 128, "dynamic") for word in ("int4", "int8", "fp8")]
        ['int4-g128', 'int8-g128-sym', 'fp8']
    """
    name = _known(word).name
    if name in CACHES and (scales == "static" or name == "fp8" or not isinstance(width, int)):
        return name
    if name == "int8":
        return f"int8-g{width}-sym"
    if name == "int4":
        return _open(f"int4-g{width}")
    if not name.startswith(("int4-", "int8-")):
        _refuse("cache", word, [*CACHES, "int4-g32", "int8-g32-sym"])
    if isinstance(width, int):
        _check_group(name, width, "cache")
    return name


def multiplied_as(name: str) -> str:
    """The units that would multiply a stored format as it is: ``int8``, ``fp8``, ``fp4``, ``int4`` or another.

    Example:
        >>> multiplied_as("int8-g4096-sym"), multiplied_as("nvfp4"), multiplied_as("q4_0")
        ('int8', 'fp4', 'int4')
    """
    entry = DTYPES[name]
    return entry.compute or f"int{entry.bits}"


def operations(name: str) -> int:
    """Floating-point operations that make a number of an element: scale and zero; none where one scale serves all.

    Example:
        >>> operations("int4-g128"), operations("int8-g4096-sym"), operations("fp8")
        (2, 1, 0)
    """
    if not DTYPES[name].group:
        return 0
    return 2 if name in _WITH_ZERO or re.search(r"-z\d", name) else 1


def _by_row(pattern: str) -> Callable[[int], str]:
    return lambda row: pattern.format(row)


def _int4(row: int) -> str:
    fits = [group for group in _INT4_GROUPS if row % group == 0]
    return f"int4-g{fits[0]}" if fits else f"int4-g{row}-z16"


_PLAIN_WEIGHTS: Mapping[str, Callable[[int], str]] = {
    "int8": _by_row("int8-g{}-sym"), "int4": _int4, "fp8": _by_row("fp8-g{}-sym-s32"), "fp4": lambda row: "mxfp4",
}  # fmt: skip


def _known(word: str) -> DType:
    text = str(word).strip().lower()
    try:
        return number_format(text)
    except UnknownDType:
        if _OPEN.fullmatch(text):
            return DTYPES[_open(text)]
        raise


def _open(name: str) -> str:
    """A group-wise format by its whole name: 16-bit zero points where the name does not say."""
    return name if name in list(DTYPES) else f"{name}-z16"


def _check_group(name: str, row: int, where: str) -> None:
    group = DTYPES[name].group
    if not group or name in _OVER_ALL or row % group == 0:
        return
    problem = f"a group of {group} is longer than a row" if group > row else f"groups of {group} do not divide rows"
    raise UsageError(f"{where}: {name}: {problem} of {row}; nearest that fits: {_nearest(name, row)}")


def _nearest(name: str, row: int) -> str:
    """The format of the same kind whose group divides the row and is closest to the one asked for."""
    match = _GROUP.fullmatch(name)
    if match is None:
        bits = DTYPES[name].bits
        fits = [e for e in DTYPES.values() if e.group and e.bits == bits and row % e.group == 0 and e.name != name]
        fits = fits or [DTYPES[f"int{bits}-g{row}-sym"]]
        return min(fits, key=lambda e: (abs(log(e.group / DTYPES[name].group)), e.name[0] != name[0])).name
    divisors = {size for low in range(1, int(row**0.5) + 1) if row % low == 0 for size in (low, row // low)}
    group = min(divisors, key=lambda size: (abs(log(size / int(match["group"]))), -size))
    near = f"{match['head']}-g{group}{match['tail']}"
    return near if match["tail"] else _open(near)


def _refuse(what: str, word: str, allowed: Iterable[str]) -> None:
    names = list(allowed)
    raise UsageError(f"{what}={word!r}: allowed: {', '.join(names)}, and the like" + did_you_mean(str(word), names))
