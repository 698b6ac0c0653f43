"""What one launch asks of a machine, as arrays that broadcast: the input of every time formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.cost.machine import Machine, machine, vector_peak
from roofline.counting.counts import KernelCount
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES, two_of_four
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Tensor

#: Where operands lie when a kernel starts, and what runs around it. ``program``: one run after the other of a program;
#: activations come from the kernel before, weights and inputs from main memory, and the power cap slows what keeps the
#: matrix units busy for long. A kernel that is all of its program runs alone. ``cold``: each kernel alone, all of its
#: operands in main memory. ``warm``: the same launch ran just before, so what fits the cache is there.
REGIMES = ("program", "cold", "warm")
#: The regime of every question that names none.
REGIME = REGIMES[0]

#: What kernels for 2:4-sparse weights reach of the rates that dense ones reach, of the sparse peak and of bandwidth, in
#: formats of 16 bits and more and in those of 8. Over dense kernels they gain 2 x 0.7 = 1.4 and 2 x 0.8 = 1.6 where
#: arithmetic sets the pace, 16/9 x 0.7 = 1.24 and 8/5 x 0.8 = 1.28 where reading weights does. Measured gains of
#: cuSPARSELt over cuBLASLt (arXiv 2603.05232 and its repository, github.com/bcacdwk/vllmbench, section 12 and
#: kernel_speedup_results): on an H100 in 16 bits 0.97 to 1.59 and in fp8 1.53 to 1.73 at 4096 rows and more, decode
#: steps 1.00 to 1.30; on an A100 in fp16 1.52, 1.22 and 1.29 at 8192, 16384 and 32768, whole prefills in int8 1.63 to
#: 1.75, decode steps 1.09 to 1.40. torchao's README on sparse training: 1.24 and 1.27 for layers of ViT-L on an A100.
SPARSE_SHARE, SPARSE_SHARE_8 = 0.7, 0.8


@dataclass(frozen=True)
class Launch:
    """A kernel launch on a machine.

    Attributes:
        row: Its counts.
        chip: Where it runs.
        dtype: The number format that its contraction is multiplied in: ``tf32`` where fp32 runs on tf32 units, another
            one for a fallback; of its output otherwise.
        peak: Of its contraction [FLOP/s]; infinity where it has none.
        regime: One of :data:`REGIMES`.
        inside: Whether it is one of an operator's kernels: what those before have written is in the cache.
    """

    row: KernelCount
    chip: Chip
    dtype: str
    peak: float
    regime: str
    inside: bool = False

    @property
    def machine(self) -> Machine:
        """The chip as numbers."""
        return machine(self.chip)

    @property
    def on_matrix(self) -> bool:
        """True where its contraction runs on matrix units: those that multiply faster than the vector units."""
        runs = self.chip.matmul_runs_as(self.dtype)
        return runs.endswith(" matrix") and self.peak > (vector_peak(self.chip, self.dtype) or 0.0)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Axes of the main operator."""
        return self.row.sizes

    @property
    def op(self) -> str:
        """Name of the main operator."""
        return self.row.kernel.main.op

    @property
    def element(self) -> float:
        """Bytes of an element of the first operand."""
        return float(DTYPES[self.row.kernel.inputs[0].dtype if self.row.kernel.inputs else self.dtype].bytes)

    @property
    def cached(self) -> Any:
        """Bytes that may be read from the cache instead of main memory, if they fit it."""
        if self.regime == "warm":
            return self.row.read
        return self.row.read_flow if self.inside or self.regime == "program" else 0.0


def uses_tf32(row: KernelCount, chip: Chip, tf32: bool | None) -> bool:
    """Tell whether a kernel's fp32 contractions may use the tf32 matrix units.

    By default (``None``) what cuDNN runs does on NVIDIA's chips, convolutions and recurrent layers, as PyTorch runs
    them unless told otherwise: ``torch.backends.cudnn.allow_tf32`` is on, ``torch.backends.cuda.matmul.allow_tf32`` off
    (https://pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices); on ROCm tf32 is
    strictly opt-in (https://github.com/pytorch/pytorch/pull/190711).
    """
    by_library = row.kernel.kind == "conv" or bool(row.kernel.attrs.get("recurrent"))
    return (by_library and chip.vendor == "NVIDIA") if tf32 is None else tf32


def checked_regime(regime: str) -> str:
    """Return a regime.

    Raises:
        UsageError: None of :data:`REGIMES`.
    """
    if regime not in REGIMES:
        raise UsageError(f"regime {regime!r}; allowed: {', '.join(REGIMES)}" + did_you_mean(str(regime), REGIMES))
    return regime


def launch(row: KernelCount, chip: Chip, tf32: bool | None, regime: str, inside: bool = False) -> Launch:
    """Collect what the formulas need.

    Raises:
        MissingFigure: The chip has no rate for the format of the contraction.
    """
    formats = list(row.flops_by)
    inside = inside or row.kernel.main.op == "recurrent_cell"  # the matmul before it, and the step before that
    if not formats:
        return Launch(row, chip, row.kernel.output.dtype, float("inf"), regime, inside)
    widest, tf32 = max(formats, key=lambda name: DTYPES[name].bits), uses_tf32(row, chip, tf32)
    dtype = chip.matmul_format(widest, tf32=tf32)
    dense = chip.matmul_peak(widest, tf32=tf32)
    weights = sparse_weights(row)
    if weights is None:
        return Launch(row, chip, dtype, dense, regime, inside)
    sparse, share = chip.sparse_peak(widest, tf32=tf32), SPARSE_SHARE_8 if DTYPES[widest].bits <= 8 else SPARSE_SHARE
    stretch = _stretch(weights) if sparse is None else 1 / share - 1
    held = replace(row, read=row.read + stretch * float(DTYPES[weights.dtype].bytes) * row.sizes["n"] * row.sizes["k"])
    return Launch(held, chip, dtype, max(dense, (sparse or 0.0) * share), regime, inside)


def sparse_weights(row: KernelCount) -> Tensor | None:
    """The 2:4-sparse weights of a matmul, if they are."""
    operands = row.kernel.inputs[1:2] if row.kernel.main.op in ("linear", "matmul") else ()
    return next((each for each in operands if two_of_four(each.dtype) is not None), None)


def _stretch(weights: Tensor) -> float:
    """Return the extra reading of a stored 2:4 matrix on a chip that skips no zeros: it is read as if dense."""
    plain = DTYPES[weights.dtype.removesuffix("-2:4")]
    return float(plain.bytes / DTYPES[weights.dtype].bytes) - 1
