"""The work that Nsight Compute counted: floating-point operations by unit and format, from a kernel's metrics.

NVIDIA's own charts count them so: ``SpeedOfLight_Hierarchical{Double,Single,Half}RooflineChart.section`` of Nsight
Compute defines ``derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2``, ``..._dfma_pred_on_x2``,
``..._hfma_pred_on_x4``, ``..._hadd_pred_on_x2`` and ``..._hmul_pred_on_x2``, since an instruction in half precision
works on a pair (https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#roofline-charts), and likewise those
in single precision that end in 2 (https://forums.developer.nvidia.com/t/357208). Those metrics are of a cycle, and in a
file of ``--set roofline`` they stand in the place of the plain ones. Operations of tensor cores are
``sm__ops_path_tensor_src_*``, a multiply-add counting two; on Volta, which has no such metric, an instruction is 512
(https://gitlab.com/NERSC/roofline-on-nvidia-gpus).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Operations of an instruction of a thread, by its name.
_OPERATIONS = {
    "dadd": 1, "dmul": 1, "dfma": 2, "fadd": 1, "fmul": 1, "ffma": 2, "fadd2": 2, "fmul2": 2, "ffma2": 4, "hadd": 2,
    "hmul": 2, "hfma": 4,
}  # fmt: skip
_FORMATS = {"d": "fp64", "f": "fp32", "h": "fp16"}
_THREAD = re.compile(r"(?:smsp|sm)__sass_thread_inst_executed_op_(\w+)_pred_on")
_TENSOR = re.compile(r"sm__ops_path_tensor_src_([a-z]+\d+)(?:_dst_([a-z]+\d+))?(?:_sparsity_(on|off))?")
#: Operations of an instruction times this many, in each cycle; the same of ``sm`` is the most that there could be.
_DERIVED = re.compile(r"derived__(smsp__sass_thread_inst_executed_op_\w+_pred_on)_x(\d)")
_HMMA = re.compile(r"(?:smsp|sm)__inst_executed_pipe_tensor")
_VOLTA, _VOLTA_OPERATIONS = "7.0", 512


@dataclass(frozen=True)
class Counted:
    """Operations of one unit in one format.

    Attributes:
        unit: ``matrix`` or ``vector``.
        dtype: Number format.
        flops: [FLOP].
    """

    unit: str
    dtype: str
    flops: float


def counted(facts: Mapping[str, Any]) -> tuple[Counted, ...]:
    """Return the operations that a profiler counted, most first; none where it counted none.

    Example:
        >>> ffma = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
        >>> counted({ffma: 1000, ffma.replace("ffma", "fadd"): 24})
        (Counted(unit='vector', dtype='fp32', flops=2024.0),)
    """
    totals = _totals(facts)
    work: dict[tuple[str, str], float] = {}
    threads: dict[str, float] = {}  # the same of a sub-partition (smsp) and of a multiprocessor (sm) counts once
    for name, total in totals.items():
        if (match := _THREAD.fullmatch(name)) and match[1] in _OPERATIONS:
            threads[match[1]] = max(threads.get(match[1], 0.0), total * _OPERATIONS[match[1]])
        elif _HMMA.fullmatch(name) and facts.get("CC") == _VOLTA:
            work["matrix", "fp16"] = total * _VOLTA_OPERATIONS
    for word, flops in threads.items():
        key = "vector", _FORMATS[word[0]]
        work[key] = work.get(key, 0.0) + flops
    for dtype, flops in _tensor(totals).items():
        work["matrix", dtype] = flops
    ordered = sorted(((flops, *key) for key, flops in work.items() if flops > 0), reverse=True)
    return tuple(Counted(unit, dtype, flops) for flops, unit, dtype in ordered)


def _tensor(totals: Mapping[str, float]) -> dict[str, float]:
    """Return operations of tensor cores by format: a metric counts unless a wider one that holds it is there."""
    named = {match.groups(): total for name, total in totals.items() if (match := _TENSOR.fullmatch(name))}
    formats: dict[str, float] = {}
    for (source, to, sparse), total in named.items():
        wider = {(source, None, None), (source, None, sparse), (source, to, None)} - {(source, to, sparse)}
        if not wider & named.keys():
            formats[source] = formats.get(source, 0.0) + total
    return formats


def _totals(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the sums of metrics by bare name: ``.sum``, or those of a cycle times the cycles; none without these."""
    rates = (facts.get(f"{unit}__cycles_elapsed.avg.per_second") for unit in ("smsp", "sm"))
    rate = next((float(each) for each in rates if isinstance(each, int | float)), 0.0)
    time = facts.get("gpu__time_duration.sum", 0.0)
    cycles = rate * time if isinstance(time, int | float) else 0.0
    totals: dict[str, float] = {}
    for name, value in facts.items():
        bare, _, form = name.partition(".")
        if not isinstance(value, int | float) or not value >= 0:
            continue
        derived = _DERIVED.fullmatch(name)
        if derived or form == "sum.per_cycle_elapsed":
            if value and not cycles:
                return {}  # a part of the work would look like all of it
            totals.setdefault(derived[1] if derived else bare, value * cycles / (int(derived[2]) if derived else 1))
        elif form in ("", "sum"):
            totals[bare] = float(value)
    return totals
