"""What a cache of prompts buys: hits over its room, and copies from the host against reading again."""

from __future__ import annotations

from roofline.ir.units import format_si
from roofline.serving.cache_policies import CachePolicies, CachePolicy
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Line, Panel, Points

#: Colours of formats, in the order in which they were given.
_COLOURS = ("kv_cache", "link", "memory", "weights", "soft")

_PLACES = (("device", "room on the device", "D"), ("host", "room with the host", "s"))


class CacheChoices(ResultChart[CachePolicies]):
    """Hits over room, and copies against reading, made by :func:`plot_cache_policies`."""

    kind, made_by, schema = CachePolicies, "rl.serving.cache_policies", "cache_choices"

    def drawing(self) -> Drawing:
        """Return hits over room, where a trace says them, and times over the length of a prefix."""
        result = self.result
        panels = [self._times()]
        if result.curve is not None:
            panels.insert(0, self._hits())
        best = min(result.policies, key=lambda each: each.first_token)
        read, first = (format_si(each, "s") for each in (best.recompute, best.first_token))
        said = f"; first token {read} where all is read, {first} with {best.cache} on the {best.place}"
        sizes = f"prompts of {result.sizes['prompt']:,} tokens, {result.sizes['concurrency']} at a time"
        sizes += said if best.place != "none" else f"; first token {read}"
        return Drawing(tuple(panels), f"KV cache of {result.title}", sizes, size=(8.0, 2.2 + 2.7 * len(panels)))

    def _hits(self) -> Panel:
        curve = self.result.curve
        assert curve is not None
        rooms = [each for each in self.result.policies if each.place != "none" and each.room > 0]
        last = max((each.room for each in rooms), default=curve.tokens[-1])
        line = Line(
            [*curve.tokens, max(last, curve.tokens[-1])], [*curve.hits, curve.hits[-1]], "compute", label="hits"
        )
        axes = Axis("room for prompts [token]", log=10), Axis("share of prompts' tokens", "%", low=0.0)
        return Panel((line, *(_rooms(rooms, *each) for each in _PLACES)), *axes, title="what is there already")

    def _times(self) -> Panel:
        result, some = self.result, self.result.saved_s > 0
        lines = [Line(result.lengths[some], result.saved_s[some], "compute", label="reading saved", bold=True)]
        lines += [
            Line(result.lengths, seconds, _COLOURS[at % len(_COLOURS)], label=f"copy of {name}", dash=True)
            for at, (name, seconds) in enumerate(result.fetch_s.items())
        ]
        axes = Axis("first tokens of a prompt that are there", log=10), Axis("time", "s", log=10)
        return Panel(tuple(lines), *axes, title="reading them against copying them from the host")


def _rooms(rooms: list[CachePolicy], place: str, name: str, marker: str) -> Points:
    """Return where the room of each format lies on the curve."""
    ours = [each for each in rooms if each.place == place]
    hover = [f"{each.cache}, {name}: {each.room:,.0f} tokens" for each in ours]
    hits = [each.device_hits + each.host_hits for each in ours]
    return Points([each.room for each in ours], hits, "kv_cache", marker=marker, name=name, hover=hover)


def plot_cache_policies(policies: CachePolicies) -> CacheChoices:
    """Describe a chart of a cache of prompts: hits over its room, and copies from the host against reading again.

    Args:
        policies: From :func:`roofline.serving.cache_policies`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No such comparison.

    Example:
        >>> import roofline as rl
        >>> ways = rl.serving.cache_policies("llama-3-8b", "h100-sxm", prompt=4000, new_tokens=100, host="64 GiB")
        >>> len(plot_cache_policies(ways).drawing().panels)
        1
    """
    return CacheChoices(policies)
