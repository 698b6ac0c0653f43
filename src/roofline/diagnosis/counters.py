"""What profilers say of a kernel besides its time: counters, cores and links, in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from roofline.diagnosis.groups import Group
from roofline.ir.units import format_si

#: Facts of other profilers worth a word: key, how it is written.
_FACTS = (
    ("cores", "{} cores"), ("available cores", "{} available"), ("math fidelity", "{}"), ("parallelization", "{}"),
    ("Collective name", "{}"), ("Group size", "on {} devices"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "SM busy {:.3g}%"),
    ("Compute (SM) Throughput", "SM busy {:.3g}%"),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM busy {:.3g}%"),
    ("DRAM Throughput", "DRAM busy {:.3g}%"),
)  # fmt: skip
#: Counters of how busy a unit was [%], the best first, and what a kernel is bound by where it is the busiest.
_BUSY = (
    ("compute", ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")),
    ("memory", ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
                "dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput", "Memory Throughput")),
)  # fmt: skip
#: Where no unit is busier than this, a kernel waits more than it works [%].
_WAITING = 40.0


def busiest(facts: Mapping[str, Any]) -> str:
    """What counters say that a kernel is bound by; empty without them.

    Example:
        >>> busiest({"Compute (SM) Throughput": 20.0, "DRAM Throughput": 75.0}), busiest({})
        ('memory', '')
    """
    busy = {unit: next((facts[key] for key in keys if _is_number(facts.get(key))), None) for unit, keys in _BUSY}
    known = {unit: float(value) for unit, value in busy.items() if value is not None}
    if len(known) < len(_BUSY):
        return ""
    unit = max(known, key=lambda unit: known[unit])
    return unit if known[unit] >= _WAITING else "launch"


def told(one: Group, facts: Mapping[str, Any]) -> str:
    """Facts of a group's longest launch in words.

    Args:
        one: The group.
        facts: What its profiler recorded.
    """
    return ", ".join(filter(None, (_told(facts), _tensix(one, facts), _link(one))))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isnan(value)


def _told(facts: Mapping[str, Any]) -> str:
    """Facts in words; what a file has instead of the number that is wanted is left out."""
    words = []
    for key, form in _FACTS:
        value = facts.get(key)
        if value not in (None, "") and (_is_number(value) or "{:" not in form):
            words.append(form.format(value))
    return ", ".join(dict.fromkeys(words))


#: Passes of the matrix unit that each fidelity takes.
_PHASES = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}


def _tensix(one: Group, facts: Mapping[str, Any]) -> str:
    """Peak of the cores that an operator of Tenstorrent's ran on: 16-bit formats are stated at all four passes."""
    phases, cores = _PHASES.get(facts.get("math fidelity", "")), facts.get("cores", 0)
    if not phases or not cores or not one.chip.cores or "fp16" not in one.chip.matrix:
        return ""
    peak = one.chip.peak("fp16") * 4 / phases * min(cores / one.chip.cores, 1.0)
    return f"peak {format_si(peak, 'FLOP/s')}"


def _link(one: Group) -> str:
    """How much of the link to the host a copy reaches, in words."""
    link = next((link for link in one.chip.links if link.kind == "host"), None)
    if link is None or one.role not in ("copy_in", "copy_out") or not one.moved or not one.seconds:
        return ""
    return f"{100 * one.moved / one.seconds / link.bandwidth:.3g}% of {link.name}"
