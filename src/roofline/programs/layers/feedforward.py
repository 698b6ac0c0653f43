"""What follows the token mixer: feed-forward blocks and routed experts."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.ir.sizes import Size, prod
from roofline.programs.layers.base import Layer, Run
from roofline.programs.layers.primitives import activate, expert_linear, gated, linear, part


@dataclass(frozen=True)
class MLP:
    """A feed-forward block: up (with a gate beside it, fused or not), activation, down."""

    inner: Size
    activation: str = "silu"
    gated: bool = True
    fused: bool = True
    bias: bool = False

    def __call__(self, run: Run, x: str) -> str:
        return self.down(run, self.up(run, x), run.b.shape(x)[-1])

    def up(self, run: Run, x: str) -> str:
        """Return the activated inner columns."""
        if not self.gated:
            return activate(run.b, run.linear(x, self.inner, "up", self.bias), self.activation)
        if self.fused:
            both = run.linear(x, 2 * self.inner, "gate_up", self.bias)
            gate, up = (part(run.b, both, self.inner, name) for name in ("gate", "up"))
        else:
            gate, up = (run.linear(x, self.inner, name, self.bias) for name in ("gate", "up"))
        return gated(run.b, gate, up, self.activation)

    def down(self, run: Run, y: str, width: Size) -> str:
        """Project back to the width of the input."""
        return run.linear(y, width, "down", self.bias)


@dataclass(frozen=True)
class Routed:
    """Tokens on their way to experts: rows by token, scores of those chosen, and where they go."""

    rows: str
    chosen: str
    index: str
    tokens: Size


@dataclass(frozen=True)
class Experts:
    """Routed experts: router, top-k, gather of token rows, grouped matmuls, weighted scatter-add."""

    experts: int  #: Experts in the layer.
    top_k: int  #: Experts that a token is sent to.
    inner: int  #: Inner size of one expert.
    activation: str = "silu"  #: Of the gate.
    gated: bool = True  #: Whether an expert has a gate beside its up-projection.
    router: str = "softmax"  #: ``softmax`` or ``sigmoid`` over the router's logits.
    router_bias: bool = False  #: Whether the router's linear layer has a bias.
    score_bias: bool = False  #: A learned bias added to the scores before the choice (DeepSeek-V3's load balancing).
    bias: bool = False  #: Whether the experts' matmuls have biases.

    def __call__(self, run: Run, x: str) -> str:
        b = run.b
        routed = self.route(run, x)
        y = self.up(run, b.op("gather_rows", routed.rows, routed.index, name="routed"))
        y = self.linear(run, y, b.shape(x)[-1], "down")
        return b.op("view", self.combine(run, y, routed), name="out", shape=b.shape(x))

    @property
    def places(self) -> int:
        """Outputs of the router."""
        return self.experts

    def route(self, run: Run, x: str) -> Routed:
        """Score the experts and choose those of each token."""
        b = run.b
        *lead, hidden = b.shape(x)
        tokens: Size = prod(lead)
        rows = b.op("view", x, name="rows", shape=(tokens, hidden))
        scores = b.op(self.router, linear(b, rows, self.places, "router", self.router_bias), name="scores")
        if self.score_bias:
            scores = b.op("add", scores, b.weight("router.score_bias", (self.places,)), name="biased_scores")
        chosen = b.op("topk", scores, name="topk", k=self.top_k)
        index = b.op("view", chosen, name="index", shape=(tokens * self.top_k,))
        return Routed(rows, chosen, index, tokens)

    def up(self, run: Run, x: str) -> str:
        """Return the activated inner columns of the experts that rows are sent to."""
        if not self.gated:
            return activate(run.b, self.linear(run, x, self.inner, "up"), self.activation)
        both = self.linear(run, x, 2 * self.inner, "gate_up")
        gate, up = (part(run.b, both, self.inner, name) for name in ("gate", "up"))
        return gated(run.b, gate, up, self.activation)

    def linear(self, run: Run, x: str, out: Size, name: str) -> str:
        """Add a linear layer with a weight per expert."""
        dtype = run.expert_dtype or run.dtype
        return expert_linear(run.b, x, self.experts, out, name, self.top_k, self.bias, dtype)

    def combine(self, run: Run, y: str, routed: Routed) -> str:
        """Add up what the experts of each token return, weighted by their scores."""
        b = run.b
        share = b.op("view", routed.chosen, name="share", shape=(routed.tokens * self.top_k, 1))
        return b.op("scatter_add", b.op("mul", y, share, name="weighted"), name="combined", t=routed.tokens)


@dataclass(frozen=True)
class WithShared:
    """Routed experts and a block beside them that all tokens take, perhaps gated by a learned scalar."""

    routed: Layer
    shared: Layer
    gate: bool = False

    def __call__(self, run: Run, x: str) -> str:
        b = run.b
        y = self.routed(run, x)
        with b.scope("shared"):
            shared = self.shared(run, x)
            if self.gate:
                gate = b.op("sigmoid", linear(b, x, 1, "gate_scalar"), name="sigmoid")
                shared = b.op("mul", shared, gate, name="scaled")
        return b.op("add", y, shared, name="with_shared")
