"""How a training run is laid out over devices, and what of that cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.cost.pipelines import BUCKET, check_pipeline, megatron_bucket
from roofline.hardware.cluster import Cluster
from roofline.ir.errors import UsageError
from roofline.ir.numbers import whole_number
from roofline.ir.sizes import one_of
from roofline.passes.training.backward import RECOMPUTE
from roofline.passes.training.mixed_precision import PRECISIONS
from roofline.passes.training.optimizer import OPTIMIZERS

#: Gradients of micro-batches add up in the matmuls that make them, as Megatron-LM's do
#: (``gradient_accumulation_fusion``), or by a kernel of their own after each micro-batch, as DeepSpeed's
#: (deepspeed/runtime/bf16_optimizer.py, ``_update_hp_grad``).
ACCUMULATIONS = ("fused", "separate")


@dataclass(frozen=True)
class Plan:
    """The layout of a training step.

    Part of what :func:`roofline.training.train` returns.

    Neighbouring devices share a layer (``tp``), then come the replicas of the model (``dp``), then the stages (``pp``):
    what talks most sits closest, as Megatron-LM numbers them.

    Attributes:
        batch: Sequences or images of one step, all devices together.
        micro_batch: Those that a device runs at once.
        tp: Devices that share every layer.
        sp: True where they share the positions too.
        pp: Stages of the pipeline.
        interleave: Virtual stages on each device of the pipeline.
        dp: Replicas of the model that get a part of the batch each.
        ep: Groups of these replicas that share the experts.
        zero: Stage of ZeRO: what the replicas divide between them.
        recompute: ``none``, ``selective`` or ``full``.
        optimizer: ``sgd``, ``momentum``, ``adamw``, ``adafactor`` or ``adam8bit``.
        precision: One of :data:`~roofline.passes.training.mixed_precision.PRECISIONS`.
        tf32: Whether fp32 contractions use tf32; ``None`` as PyTorch runs them.
        overlap: True where gradients and sharded weights travel during the computation.
        overlap_experts: True where tokens travel to the experts during that of another micro-batch.
        accumulation: How gradients of micro-batches add up in ``mixed`` precision, one of :data:`ACCUMULATIONS`.
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
    tf32: bool | None = None
    overlap: bool = True
    overlap_experts: bool = False
    accumulation: str = ACCUMULATIONS[0]

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch", "tp", "pp", "interleave", "dp", "ep"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if isinstance(self.zero, bool) or self.zero not in (0, 1, 2, 3):
            raise UsageError(f"zero={self.zero!r}; allowed: 0, 1, 2, 3")

    @property
    def devices(self) -> int:
        """Devices of all groups together."""
        return self.tp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches that each replica of the model runs per step."""
        return self.batch // (self.dp * self.micro_batch)

    def bucket(self, replicas: int) -> float:
        """Gradients reduced at a time among replicas: Megatron-core's with an fp32 copy, else PyTorch's [byte]."""
        return 4 * megatron_bucket(replicas) if PRECISIONS[self.precision].master else BUCKET

    @property
    def schedule(self) -> str:
        """Schedule of the pipeline."""
        return "interleaved" if self.interleave > 1 else "1f1b"

    def check(self, on: Cluster) -> None:
        """Refuse what cannot run.

        Raises:
            UsageError: Names the option, what is allowed and the nearest that is.
        """
        one_of("recompute", self.recompute, RECOMPUTE)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("precision", self.precision, PRECISIONS)
        one_of("accumulation", self.accumulation, ACCUMULATIONS)
        if self.zero and self.dp == 1:
            raise UsageError(
                f"zero={self.zero} divides memory between replicas of the model, and dp=1; give dp=2 or more"
            )
        if self.dp % self.ep:
            divisors = ", ".join(str(n) for n in range(1, min(self.dp, 1024) + 1) if self.dp % n == 0)
            raise UsageError(f"ep={self.ep} does not divide dp={self.dp}; fits: {divisors}")
        if self.overlap_experts and (self.ep == 1 or self.micro_batches == 1):
            raise UsageError(
                "overlap_experts=True lets tokens travel to experts beside another micro-batch; give ep=2 or more and "
                f"two micro-batches or more, not ep={self.ep} and {self.micro_batches}"
            )
        if self.sp and self.tp == 1:
            raise UsageError("sp=True shards positions over the tensor-parallel devices; give tp=2 or more")
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
            near = _nearest(length, self.tp)
            raise UsageError(f"sp=True: S={length} positions cannot be shared by tp={self.tp}; the nearest: {near}")

    def _check_batch(self) -> None:
        if self.batch % (self.dp * self.micro_batch):
            raise UsageError(
                f"batch={self.batch} cannot be shared by dp={self.dp} replicas in micro-batches of {self.micro_batch}; "
                f"the nearest: {_nearest(self.batch, self.dp * self.micro_batch)}"
            )


def _nearest(number: int, step: int) -> str:
    """Name the multiples of a step on both sides of a number."""
    low = number // step * step
    return f"{low} or {low + step}" if low else str(step)
