"""What runs beside the kernels of a trace: copies, collectives, operators on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roofline.diagnosis.groups import role
from roofline.diagnosis.idle import cover, heavy, length
from roofline.ir.units import format_si
from roofline.traces.events import Trace
from roofline.traces.link import Launch


@dataclass(frozen=True, slots=True)
class Beside:
    """Launches that may run beside kernels: collectives or copies.

    Attributes:
        seconds: In all [s].
        exposed: While no kernel ran [s].
        overlapped: While one ran [s].
    """

    seconds: float
    exposed: float
    overlapped: float

    @property
    def words(self) -> str:
        """Those times in words; empty where there were none."""
        whole, exposed, hidden = (format_si(part, "s") for part in (self.seconds, self.exposed, self.overlapped))
        return f"{whole}: {exposed} exposed, {hidden} overlapped" if self.seconds else ""


def beside(ran: Sequence[Launch], count: int, *roles: str) -> Beside:
    """How much of some launches kernels cover, of one iteration.

    Args:
        ran: Launches of whole iterations.
        count: How many.
        roles: Of the launches that are looked at.
    """
    kernels = cover([(one.start, one.end) for one in ran if role(one) == "kernel"])
    looked_at = cover([(one.start, one.end) for one in ran if role(one) in roles])
    total = length(looked_at)
    pairs = zip(looked_at.start.tolist(), looked_at.end.tolist(), strict=True)
    overlapped = sum(kernels.within(low, high) for low, high in pairs)
    return Beside(total / count, (total - overlapped) / count, overlapped / count)


def heavy_on_host(trace: Trace, ran: Sequence[Launch], count: int) -> tuple[tuple[str, float, float], ...]:
    """Operators that computed on the processor beside a device: name, calls and time of one iteration, most first."""
    since = min((one.issued for one in ran if one.issued == one.issued), default=ran[0].start)
    events = trace.events
    found: dict[str, list[float]] = {}
    for at in heavy(trace, ran):
        if events.start[at] + events.duration[at] >= since or count == 1:
            found.setdefault(events.names[events.name[at]], []).append(float(events.duration[at]))
    rows = ((name, len(times) / count, sum(times) / count) for name, times in found.items())
    return tuple(sorted(rows, key=lambda row: -row[2]))
