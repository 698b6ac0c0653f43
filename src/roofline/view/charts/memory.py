"""What fills the memory of a device, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.ir.errors import UsageError
from roofline.ir.report import size_words
from roofline.ir.units import format_bytes
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel, Rule


@dataclass(frozen=True, eq=False, repr=False)
class MemoryParts(Chart):
    """Memory by part, made by :func:`plot_memory`.

    Attributes:
        estimate: Whose memory it is.
        parts: Bytes by part, those of nothing left out [byte].
    """

    schema = "memory_parts"

    estimate: Estimate
    parts: dict[str, float]

    def subject(self) -> dict[str, Any]:
        """Return what the estimate is of."""
        return self.estimate.subject()

    def summary(self) -> dict[str, Any]:
        """Return the whole, and what there is."""
        total, capacity = sum(self.parts.values()), self.estimate.chip.capacity
        return {"memory_bytes": total, "capacity_bytes": capacity, "fits": total <= capacity}

    def records(self) -> list[dict[str, Any]]:
        """Return one row per part: its bytes and its share."""
        total = sum(self.parts.values())
        return [{"part": name, "bytes": size, "share": size / total} for name, size in self.parts.items()]

    def drawing(self) -> Drawing:
        """Return a bar for each part, each beginning where the last one ended, and the capacity."""
        names, sizes = list(self.parts), list(self.parts.values())
        total, capacity = sum(sizes), self.estimate.chip.capacity
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        texts = [format_bytes(size) for size in sizes]
        hover = [f"{name.replace('_', ' ')}: {text}, {size / total:.1%} of what is needed"
                 for name, text, size in zip(names, texts, sizes, strict=True)]  # fmt: skip
        marks = (
            Bars(range(len(names)), sizes, starts, names, texts=texts, hover=hover),
            Bars([len(names)], [total], colour="soft", texts=[format_bytes(total)], hover=[f"all of it: {texts[-1]}"]),
            Rule(x=capacity, label=f"capacity {format_bytes(capacity)}", colour="red"),
        )
        words = tuple(name.replace("_", " ").replace("kv", "KV") for name in names)
        est, said = self.estimate, ", ".join(size_words(self.estimate.subject(), single=True))
        high = max(total, min(capacity, 4 * total)) * 1.05
        panel = Panel(marks, Axis("memory", "B", low=0.0, high=high), Axis(categories=(*words, "total")))
        head = f"Memory of {est.graph.name} on {est.chip.name}"
        return Drawing((panel,), head, said, size=(8.0, 1.6 + 0.4 * len(words)), legend=False)

    def __repr__(self) -> str:
        est = self.estimate
        return f"<MemoryParts of {est.graph.name} on {est.chip.name}: {format_bytes(sum(self.parts.values()))}>"


def plot_memory(estimate: Estimate) -> MemoryParts:
    """Describe a chart of what fills the memory: weights, KV cache, activations and so on, against the capacity.

    Args:
        estimate: Of one point.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: It is none, or spans a grid.

    Example:
        >>> import roofline as rl
        >>> plot_memory(rl.estimate("gpt2", "h100-sxm", batch=1, seq=1024))
        <MemoryParts of gpt2 prefill on h100-sxm: 1.76 GiB>
    """
    if not isinstance(estimate, Estimate):
        raise UsageError(f"expected an Estimate, as of rl.estimate(...), given {repr(estimate)[:60]}")
    if estimate.shape:
        raise UsageError(f"this chart shows one point; index the axes {estimate.axis_names} of the estimate first")
    parts = {name: float(size) for name, size in estimate.memory.parts().items() if float(size)}
    return MemoryParts(estimate, parts)
