"""Words for formats: what people write, what arrays are rounded to, what programs count."""

from __future__ import annotations

from roofline.ir.errors import UsageError
from roofline.ir.text import shown
from roofline.ops.rounding import Format, number_format
from roofline.passes.formats.scales import weight_format


def as_format(word: str | Format, row: int, where: str = "weights") -> Format:
    """Return the format that weights with rows of some length get, with the scales that the passes count.

    Args:
        word: A format or its name: ``int8`` has a 16-bit scale a row, ``int4`` groups of 128, ``fp8`` a 32-bit scale a
            row; ``-tensor`` and ``-asym`` behind a name are one fp32 scale for all, and a zero point.
        row: Elements that one output sums over [elements].
        where: Named in errors.

    Returns:
        The format.

    Raises:
        UnknownDType: No such format.
        UsageError: Groups that do not divide the rows, or a format that nothing rounds to.

    Example:
        >>> print(as_format("int8", 4096), as_format("int4", 64), as_format("fp8-tensor", 64))
        int8-g4096-sym int4-g64 fp8-tensor
    """
    if isinstance(word, Format):
        return word
    if not isinstance(word, str):
        raise UsageError(f"{where}: expected a format such as int8 or int4-g128, not {shown(word)}")
    base, _, more = ("fp8-e5m2" if word == "e5m2" else word).partition("-")
    if more in ("e5m2", "asym"):
        return number_format(f"{weight_format(base, row, where)}-{more}")
    if "tensor" in more:
        return number_format(word)
    return number_format(weight_format(word, row, where))


def stored_as(form: Format) -> str:
    """Return the word by which :func:`roofline.passes.quantize` counts a format's bits.

    Example:
        >>> stored_as(as_format("int8-tensor", 64)), stored_as(as_format("mxfp8-e5m2", 64))
        ('int8-tensor', 'mxfp8')
    """
    return "-".join(part for part in form.name.split("-") if part not in ("e5m2", "asym"))
