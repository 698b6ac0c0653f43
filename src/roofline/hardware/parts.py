"""The parts of a chip: peaks, memory levels, links, fallbacks and achievable shares, as text or SI numbers."""

from __future__ import annotations

from contextlib import suppress
from math import inf, isfinite
from numbers import Real
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from roofline.ir import units
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import UnitError, UnknownDType

Unit = Literal["matrix", "vector"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class FrozenDict(dict[_Key, _Value], Generic[_Key, _Value]):
    """A dictionary that cannot change, so that a cached chip stays what its file says."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a chip's figures are frozen; make a changed copy with chip.replace(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = update = setdefault = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict[_Key, _Value]], tuple[dict[_Key, _Value]]]:
        return FrozenDict, (dict(self),)


def _quantity(unit: str, least: float, most: float) -> BeforeValidator:
    """A validator that reads text or an SI number of ``unit`` from ``least`` to ``most``."""

    def read(value: Any) -> float:
        try:
            number = units.parse(value, unit)
        except OverflowError:
            number = inf
        if least <= number <= most:
            return number
        size, bound, limit = ("small", "least", least) if number < least else ("large", "most", most)
        bare = isinstance(value, Real)
        hint = f"; a bare number is taken as {unit}" if bare else ""
        raise UnitError(f"{shown(value)} is too {size}; allowed: at {bound} {units.format_si(limit, unit)}{hint}")

    return BeforeValidator(read)


def _real(value: Any) -> float:
    """Read a number without unit: text, booleans and what is not finite are none."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            if isfinite(number := float(value)):
                return number
    raise ValueError(f"expected a finite number, given {shown(value)}")


def shown(value: object, size: int = 100) -> str:
    """Write a value that was given into a message, whatever it is, in at most ``size`` characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "an integer of thousands of digits"
    return text if len(text) <= size else f"{text[:size]}..."


def _dtype_name(key: Any) -> str:
    try:
        return find_dtype(key).name
    except UnknownDType as error:
        raise ValueError(str(error)) from None


#: Figures of machines that are or may be: a thousandth of the smallest shipped to a thousand times the largest.
FlopRate = Annotated[float, _quantity("FLOP/s", 1e6, 1e21)]
ByteRate = Annotated[float, _quantity("B/s", 1e6, 1e20)]
Bytes = Annotated[float, _quantity("B", 1e3, 1e18)]
Clock = Annotated[float, _quantity("Hz", 1e6, 1e12)]
Watts = Annotated[float, _quantity("W", 1e-3, 1e9)]
Seconds = Annotated[float, _quantity("s", 0.0, 1e3)]
Number = Annotated[float, BeforeValidator(_real)]
Share = Annotated[Number, Field(gt=0, le=1)]
#: Of a fitted parameter of the time model, whose own bounds are narrower.
Fitted = Annotated[Number, Field(ge=0, le=1e15)]
DTypeName = Annotated[str, BeforeValidator(_dtype_name)]
Text = Annotated[str, Field(max_length=4000)]


class Frozen(BaseModel):
    """A part of a chip, which does not change and takes no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Peak(Frozen):
    """One dense peak.

    Attributes:
        flops: Dense rate, two operations per multiply-add [FLOP/s].
        sparse: The printed 2:4-sparse figure; only matmuls with 2:4-sparse weights use it [FLOP/s].
        accumulate: The format that matmuls are summed in at this rate.
        clock: The clock behind the figure [Hz].
        source: Where the figure comes from.
        note: What a reader of the number should know.
    """

    flops: FlopRate
    sparse: FlopRate | None = None
    accumulate: str | None = None
    clock: Clock | None = None
    source: Text
    note: Text = ""


class MemoryLevel(Frozen):
    """One memory or cache.

    Attributes:
        name: ``HBM``, ``GDDR``, ``LLC``, ``L2``, ``SRAM``...
        capacity: All of it on the device, also when each core owns a part [byte].
        vendor: The vendor's own words for the capacity, such as ``"80 GB"``.
        bandwidth: All cores together [B/s].
        shared_by: Who can reach one part of it: the whole chip, or one core.
        source: Where the figures come from.
        note: What a reader of the numbers should know.
    """

    name: str
    capacity: Bytes | None = None
    vendor: str = ""
    bandwidth: ByteRate | None = None
    shared_by: Literal["chip", "core"] = "chip"
    source: Text
    note: Text = ""


class Link(Frozen):
    """One way out of the device.

    Attributes:
        name: ``NVLink4``, ``PCIe Gen5 x16``...
        bandwidth: One direction, all of the device's ports together [B/s].
        kind: To other devices, to the host, or to devices of other nodes (a cluster's).
        per_peer: One direction to one peer, where the fabric is point to point [B/s].
        latency: Of one message, or of one step of a collective [s].
        reduces: Whether its switches add up and multicast what devices send (NVLink SHARP).
        source: Where the figures come from.
        note: What a reader of the numbers should know.
    """

    name: str
    bandwidth: ByteRate
    kind: Literal["device", "host", "node"] = "device"
    per_peer: ByteRate | None = None
    latency: Seconds | None = None
    reduces: Annotated[bool, Field(strict=True)] = False
    source: Text
    note: Text = ""


class Fallback(Frozen):
    """What a precision without hardware runs as.

    Attributes:
        runs_as: The format whose rate it gets; operands stay stored as they are.
        passes: Times that its units multiply for one product.
        reason: Why, in a few words.
        source: Where that is documented.
    """

    runs_as: DTypeName
    passes: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    reason: Text
    source: Text


#: Names of parameters and of their groups that chip files written by earlier versions may still have.
_FORMER = {
    "processor_product": "cpu_matmul", "processor_stream": "cpu_stream", "widen": "dequantize",
    "widen_group": "dequantize_group", "share_widened": "share_dequantized",
}  # fmt: skip


def _renamed(value: Any) -> Any:
    """Replace former names of parameters and of their groups by those of today."""
    if not isinstance(value, dict):
        return value
    return {_FORMER.get(name, name): _renamed(entry) for name, entry in value.items()}


_Groups = Annotated[
    dict[str, Annotated[dict[str, Fitted], AfterValidator(FrozenDict)]],
    BeforeValidator(_renamed),
    AfterValidator(FrozenDict),
]


class Efficiency(Frozen):
    """What programs reach of the peaks, and how sure that is.

    Attributes:
        compute: Achievable share of the compute peak, 0 to 1.
        memory: Achievable share of the main memory's bandwidth, 0 to 1.
        launch: The least time of one kernel on the device, an elementwise one; matmuls take twice that at least,
            convolutions and fused attention three times [s].
        host: Host time of one framework operation in eager mode [s].
        low: The fast end of the stated range, as a factor on the expected time, at most 1.
        high: The slow end, at least 1.
        calibrated: Fitted to measurements of this chip, of another one, or assumed.
        held_out_error: Mean relative error of a calibration on operators that its fit had not seen; absent where nobody
            says.
        parameters: Fitted figures of the time model by group (:mod:`roofline.cost`); priors serve for the rest.
        like: A chip whose fitted figures are used where this one has none, scaled by the datasheets.
        source: Where the shares come from.
    """

    compute: Share = 0.70
    memory: Share = 0.82
    launch: Seconds = 1e-6
    host: Seconds = 21.7e-6
    low: Share = 0.65
    high: Annotated[Number, Field(ge=1, le=1e3)] = 2.0
    calibrated: Literal["measured", "transferred", "prior"] = "prior"
    held_out_error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    parameters: _Groups = FrozenDict()
    like: str = ""
    source: Text = (
        "generic prior: published best matmuls reach 0.51-0.97 of the peak and streams 0.66-0.94 of the "
        "bandwidth (stas00/ml-engineering MAMF table, te42kyfo/gpu-benches)"
    )
