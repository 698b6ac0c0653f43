"""How a training run is laid out over devices, and what of that cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.cost.schedule import BUCKET, check_pipeline, megatron_bucket
from roofline.hardware.cluster import Cluster
from roofline.ir.errors import UsageError, did_you_mean
from roofline.passes.training.backward import RECOMPUTE
from roofline.passes.training.mixed_precision import PRECISIONS
from roofline.passes.training.optimizer import OPTIMIZERS


@dataclass(frozen=True)
class Plan:
    """The layout of a training step.

    Neighbouring devices share a layer (``tp``), then come the copies of the model (``dp``), then the stages (``pp``):
    what talks most sits closest, as Megatron-LM numbers them.

    Attributes:
        batch: Sequences or images of one step, all devices together.
        micro_batch: Those that a device runs at once.
        tp: Devices that share every layer.
        sp: Whether they share the positions too.
        pp: Stages of the pipeline.
        interleave: Chunks of layers on each device of the pipeline.
        dp: Copies of the model that get a part of the batch each.
        ep: Groups of these copies that share the experts.
        zero: Stage of ZeRO: what the copies divide between them.
        recompute: ``none``, ``selective`` or ``full``.
        optimizer: ``sgd``, ``momentum``, ``adamw``, ``adafactor`` or ``adam8bit``.
        precision: One of :data:`~roofline.passes.training.mixed_precision.PRECISIONS`.
        overlap: Whether gradients and sharded weights travel beside the computation.
    """

    batch: int
    micro_batch: int
    tp: int = 1
    sp: bool = False
    pp: int = 1
    interleave: int = 1
    dp: int = 1
    ep: int = 1
    zero: int = 0
    recompute: str = "none"
    optimizer: str = "adamw"
    precision: str = "mixed-bf16"
    overlap: bool = True

    @property
    def devices(self) -> int:
        """All of them."""
        return self.tp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches that each copy of the model runs a step."""
        return self.batch // (self.dp * self.micro_batch)

    def bucket(self, copies: int) -> float:
        """Gradients reduced at a time among copies: Megatron-core's beside an fp32 copy, else PyTorch's [byte]."""
        return 4 * megatron_bucket(copies) if PRECISIONS[self.precision].master else BUCKET

    @property
    def schedule(self) -> str:
        """That of the pipeline."""
        return "interleaved" if self.interleave > 1 else "1f1b"

    def check(self, on: Cluster) -> None:
        """Refuse what cannot run.

        Raises:
            UsageError: Names the option, what is allowed and the nearest that is.
        """
        for name in ("batch", "micro_batch", "tp", "pp", "interleave", "dp", "ep"):
            _whole(name, getattr(self, name))
        _one_of("recompute", self.recompute, RECOMPUTE)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("precision", self.precision, PRECISIONS)
        if self.zero not in (0, 1, 2, 3):
            raise UsageError(f"zero={self.zero!r}; allowed: 0, 1, 2, 3")
        if self.zero and self.dp == 1:
            raise UsageError(
                f"zero={self.zero} divides memory between copies of the model, and dp=1; give dp=2 or more"
            )
        if self.dp % self.ep:
            raise UsageError(f"ep={self.ep} does not divide dp={self.dp}; fits: {_divisors(self.dp)}")
        if self.sp and self.tp == 1:
            raise UsageError("sp=True shares positions between the devices that share the layers; give tp=2 or more")
        self._check_batch()
        check_pipeline(self.pp, self.micro_batches, self.schedule, self.interleave)
        if self.interleave > 1 and self.pp == 1:
            raise UsageError(f"interleave={self.interleave} needs a pipeline; give pp=2 or more")
        on.span(self.devices)

    def check_positions(self, length: int | None) -> None:
        """Refuse positions that do not come out even.

        Args:
            length: Of a sequence; ``None`` where the program has none.

        Raises:
            UsageError: Names the nearest lengths that do.
        """
        if self.sp and length is not None and length % self.tp:
            low = length // self.tp * self.tp
            near = f"{low} or {low + self.tp}" if low else str(self.tp)
            raise UsageError(f"sp=True: S={length} positions cannot be shared by tp={self.tp}; the nearest: {near}")

    def _check_batch(self) -> None:
        step = self.dp * self.micro_batch
        if self.batch % step:
            low = self.batch // step * step
            near = f"{low} or {low + step}" if low else str(step)
            raise UsageError(
                f"batch={self.batch} cannot be shared by dp={self.dp} copies in micro-batches of {self.micro_batch}; "
                f"the nearest: {near}"
            )


def _whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r}: a whole number from 1 is wanted")


def _one_of(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise UsageError(f"{name}={value!r}; allowed: {', '.join(allowed)}{did_you_mean(str(value), allowed)}")


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 1024) + 1) if number % n == 0)
