"""The keys of a decoder: sizes, attention, feed-forward, experts, state; checked together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roofline.programs.families.config import Config, Count, Layers, Positive

#: Activations that a file may name; ``clamped_swiglu`` is gpt-oss's.
Activation = Literal[
    "silu", "gelu", "gelu_tanh", "gelu_new", "relu", "relu2", "quick_gelu", "xielu", "clamped_swiglu"
]  # fmt: skip
#: What mixes positions in a layer: attention (to a window or to all), a state-space or other recurrent mixer, attention
#: beside one, or nothing. ``none`` is a layer that has a feed-forward block only.
Mixer = Literal[
    "sliding", "full", "mamba", "mamba2", "delta", "kda", "mlstm", "conv", "linear", "recurrent", "full+mamba2", "none"
]  # fmt: skip
#: What follows it.
Feed = Literal["dense", "moe", "none"]


class StateConfig(Config):
    """Sizes of mixers that keep a state of fixed size.

    Attributes:
        ssm_inner: Channels of the mixer.
        ssm_state: State of a channel.
        ssm_conv: Taps of the convolution before the scan.
        ssm_conv_kept: Whether the cache keeps all ``kernel`` inputs of the convolution, as transformers does, or the
            ``kernel-1`` that the next step needs, as some engines do.
        ssm_heads: Heads of Mamba-2.
        ssm_groups: Groups of Mamba-2 that share B and C.
        ssm_rank: Rank of Mamba-1's step projection.
        ssm_bias: Biases of the mixer's input and output projections.
        ssm_conv_bias: Bias of the convolution.
        ssm_norm: Gated RMSNorm before Mamba-2's output projection.
        ssm_inner_norms: Norms of Mamba-1's step, B and C: ``scaled`` (Jamba) or ``plain``, without a weight.
        ssm_chunk: Positions that a scan takes at a time.
        ssm_dtype: Number format of the kept state, the cache's when empty.
        delta_keys: Key heads of the gated delta rule.
        delta_values: Value heads of the gated delta rule.
        delta_key_dim: Width of a key head.
        delta_value_dim: Width of a value head.
        delta_rank: Rank of the projections to the decays and the output gate of Kimi's delta rule, 0 for full ones.
    """

    ssm_inner: Count = 0
    ssm_state: Count = 0
    ssm_conv: Positive = 4
    ssm_conv_kept: Literal["kernel", "kernel-1"] = "kernel"
    ssm_heads: Count = 0
    ssm_groups: Positive = 1
    ssm_rank: Count = 0
    ssm_bias: bool = False
    ssm_conv_bias: bool = True
    ssm_norm: bool = True
    ssm_inner_norms: Literal["none", "scaled", "plain"] = "none"
    ssm_chunk: Positive = 256
    ssm_dtype: str = ""
    delta_keys: Count = 0
    delta_values: Count = 0
    delta_key_dim: Count = 0
    delta_value_dim: Count = 0
    delta_rank: Count = 0

    def state_fault(self, mixers: frozenset[str]) -> str:
        """What the mixers need and is not there, in words; empty when all is well."""
        for mixer, keys in _NEEDS.items():
            lacking = [key for key in keys if not getattr(self, key)]
            if mixer in mixers and lacking:
                return f"a layer of kind {mixer} needs {', '.join(lacking)}"
        if self.ssm_heads and (self.ssm_inner % self.ssm_heads or self.ssm_heads % self.ssm_groups):
            return (
                f"ssm_inner = {self.ssm_inner}, ssm_heads = {self.ssm_heads} and ssm_groups = {self.ssm_groups} clash"
            )
        if "kda" in mixers and self.delta_keys != self.delta_values:
            return (
                f"a layer of kind kda has as many key as value heads, given {self.delta_keys} and {self.delta_values}"
            )
        if self.delta_keys and self.delta_values % self.delta_keys:
            return f"delta_values = {self.delta_values} is no multiple of delta_keys = {self.delta_keys}"
        return ""


_NEEDS = {
    "mamba": ("ssm_inner", "ssm_state", "ssm_rank"),
    "mamba2": ("ssm_inner", "ssm_state", "ssm_heads"),
    "full+mamba2": ("ssm_inner", "ssm_state", "ssm_heads"),
    "delta": ("delta_keys", "delta_values", "delta_key_dim", "delta_value_dim"),
    "kda": ("delta_keys", "delta_values", "delta_key_dim", "delta_value_dim"),
    "mlstm": ("delta_keys", "delta_key_dim", "delta_value_dim"),
    "recurrent": ("ssm_inner",),
}


class DecoderConfig(StateConfig):
    """Sizes and options of a decoder.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Query heads.
        vocab: Rows of the token table.
        heads_pattern: Query heads of each layer, in turn, where they are not all ``heads``.
        kv_heads: Key-value heads, ``heads`` when absent.
        kv_pattern: Key-value heads of each layer, in turn, where they are not all ``kv_heads``.
        width_pattern: Width of a head in each layer, in turn, where it is not ``head_dim`` in all.
        head_dim: Width of a head, ``hidden / heads`` when absent (which must then be whole).
        value_width: Width of a value head where it is not that of a key head; latent attention has ``value_dim``.
        value_scale: Whether values are multiplied by a constant.
        intermediate: Inner size of the dense feed-forward block, ``4 * hidden`` when absent.
        inner_pattern: Inner size of that block in each layer, in turn, where it is not ``intermediate`` in all.
        positions: Rows of a learned position table, 0 for none.
        fixed_positions: Whether positions that are not learned are added to the embeddings (XGLM, CTRL).
        embed_width: Width of the token table where it is not ``hidden``, with a projection after it (OPT-350M); 0 for
            the same.
        layer_embed: Width of embeddings that each layer adds of its own (Gemma 3n and 4), 0 for none.
        layer_vocab: Rows of their table, ``vocab`` when absent.
        embed_norm: A norm of the embeddings (BLOOM).
        norm: Kind of norm.
        norm_bias: Shift of layer norms.
        norm_scale: Scale of norms; OLMo has none.
        activation: Of the feed-forward block.
        gated: Whether the feed-forward block has a gate.
        rope: Whether queries and keys are rotated.
        rotary_dim: Columns of a head that are rotated, 0 for all.
        rope_pattern: Whether a layer rotates, in turn over the depth.
        alibi: Whether a bias that falls with the distance is added to the scores.
        qkv_bias: Biases of the q, k and v projections.
        out_bias: Bias of the attention output projection.
        last_out_bias: The same in the last layer alone (GPT-NeoX Japanese).
        mlp_bias: Biases of the feed-forward block.
        qk_norm: Norm of queries and keys.
        qk_norm_kind: Kind of that norm.
        qk_norm_over: What shares a weight: every ``head``, none of the ``heads`` (each has its own), or the whole
            ``width``, which is then normalised at once.
        qk_norm_bias: Shift of that norm.
        qk_norm_scale: Scale of that norm; nanochat has none.
        sub_norms: Norms before the output projections of attention and feed-forward (BitNet).
        value_bias: Whether the scores have a bias that a projection finds from the values (Doge).
        differential: Whether attention is the difference of two, each of half the heads (DiffLlama).
        attention_gate: Whether attention's output is gated by a second half of the query projection (Qwen3-Next).
        output_gate: A gate of attention's output with a projection of its own: one number for each ``head``, or for the
            whole ``width``.
        output_gate_bias: A bias of it for each head.
        output_gate_activation: Over it.
        value_norm: Norm of values, without a weight.
        keys_as_values: Whether layers that attend to all positions have no value projection: values are the projected
            keys.
        shared_layers: Last layers that have no keys and values of their own, but those of the last layer of their
            kind before them.
        pre_norms: Norms before attention and feed-forward.
        first_norm: The norm before the first layer's attention; ModernBERT has none, its embeddings being normed.
        post_norms: Norms after attention and feed-forward, beside those before.
        norms_after: Whether a layer has its norms after attention and feed-forward instead of before them, in turn
            over the depth; by ``pre_norms`` and ``post_norms`` when absent.
        sum_norms: Norms of the sum with the residual, as the first GPT has them.
        block: ``serial``: feed-forward after attention; ``parallel``: both from one normed input; ``parallel_norms``:
            both from inputs of their own norms.
        residual_scale: Whether what is added to the residual is multiplied by a constant.
        residual_weights: Whether the residual is multiplied by a learned vector before something is added (Doge).
        layer_scale: Whether the residual is multiplied by a constant after each layer.
        final_norm: A norm before the head.
        embedding_scale: Whether embeddings are multiplied by a constant.
        attention_softcap: Soft bound of the scores, 0 for none.
        logit_softcap: Soft bound of the logits, 0 for none.
        tied: Whether the head is the token table.
        head: Whether there is a head; a bare model ends in hidden states.
        head_bias: Bias of the head.
        head_transform: A projection, the activation and a norm before the head (ModernBERT's decoder).
        head_transform_bias: Bias of that projection.
        logit_scale: Whether logits are multiplied by a constant.
        fused_qkv: One projection for q, k and v. Checkpoints often store three, but serving stacks and the measured
            programs run one; the parameters are the same.
        fused_gate_up: One projection for gate and up, for the same reason.
        window: Positions that a sliding layer attends to, 0 for all.
        pattern: What mixes positions in each layer, in turn over the depth; all sliding when there is a window.
        feeds: What follows the mixer in each layer, in turn; by ``experts`` and ``dense_layers`` when absent.
        kv_policy: ``windowed``: sliding layers keep ``min(C, window)`` positions; ``full``: all C, as an engine
            with one page size for all layers reserves.
        attention: ``sdpa`` (one kernel) or ``naive`` (scores written out, every step its own kernel).
        dropout: Whether training drops attention probabilities, the outputs of attention and feed-forward, and
            embeddings.
        sinks: One learned logit a head in the softmax.
        sink_layers: Whether ``all`` layers have them or those with a window, ``sliding``.
        experts: Routed experts a layer, 0 for a dense model.
        zero_experts: Experts beside them that return their input (LongCat-Flash), counted as if no token went there.
        top_k: Experts a token.
        expert_intermediate: Inner size of an expert, ``intermediate`` when absent.
        shared_intermediate: Inner size of the shared experts together, 0 for none.
        shared_gate: Whether the shared experts' output is gated by a learned scalar.
        expert_gated: Whether experts have a gate, as the dense block when absent.
        dense_layers: First layers that stay dense in a model with experts.
        router: Over the router's logits.
        router_bias: Bias of the router.
        score_bias: Learned bias of the scores (DeepSeek-V3).
        expert_bias: Biases of the experts.
        expert_norm: A norm of what routed and shared experts add up to (A.X-K1).
        expert_sum_bias: A bias of what the experts of a layer add up to (JetMoE).
        expert_attention: Whether queries and attention's output are projected by the experts that a token is sent to, a
            set of ``kv_heads`` heads each (JetMoE).
        mla: Multi-head latent attention. Only this switch turns it on; the five sizes below do not.
        q_lora: Rank of the query projection, 0 for a full one.
        kv_lora: Rank of the key-value latent.
        nope_dim: Head width without position.
        rope_dim: Head width that is rotated, one key for all heads.
        value_dim: Head width of values.
        index_heads: Heads of a small attention that picks the positions to attend to (DeepSeek-V3.2), 0 for none. Its
            projections, its keys in the cache and its scores are counted; attention itself still reads all positions.
        index_dim: Width of these heads.
        index_kind: ``weighted``: queries from the query latent, weighted over the heads; ``heads``: queries and keys
            normed, a choice for each head (MiniMax-M3).
        index_pattern: Whether a layer has one, in turn over the depth.
        prefill_logits: Whether a prefill computes logits of the ``last`` position or of ``all``.
        linear_dtype: Number format of the layers' matrices, where it is not the file's.
        expert_dtype: Number format of the experts' matrices, where it is not the file's.
    """

    hidden: Positive
    layers: Layers
    heads: Positive
    vocab: Positive
    heads_pattern: tuple[Positive, ...] = Field((), max_length=2000)
    kv_heads: Positive | None = None
    kv_pattern: tuple[Positive, ...] = Field((), max_length=2000)
    head_dim: Positive | None = None
    value_width: Positive | None = None
    value_scale: bool = False
    width_pattern: tuple[Positive, ...] = Field((), max_length=2000)
    intermediate: Positive | None = None
    inner_pattern: tuple[Positive, ...] = Field((), max_length=2000)
    positions: Count = 0
    fixed_positions: bool = False
    embed_width: Count = 0
    layer_embed: Count = 0
    layer_vocab: Positive | None = None
    embed_norm: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: bool = True
    norm_scale: bool = True
    activation: Activation = "silu"
    gated: bool = True
    rope: bool = True
    rotary_dim: Count = 0
    rope_pattern: tuple[bool, ...] = Field((True,), min_length=1, max_length=2000)
    alibi: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    last_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    qk_norm_over: Literal["head", "heads", "width"] = "head"
    qk_norm_bias: bool = False
    qk_norm_scale: bool = True
    sub_norms: bool = False
    value_bias: bool = False
    differential: bool = False
    attention_gate: bool = False
    output_gate: Literal["none", "head", "width"] = "none"
    output_gate_bias: bool = False
    output_gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    value_norm: bool = False
    keys_as_values: bool = False
    shared_layers: Count = 0
    pre_norms: bool = True
    first_norm: bool = True
    post_norms: bool = False
    norms_after: tuple[bool, ...] = Field((), max_length=2000)
    sum_norms: bool = False
    block: Literal["serial", "parallel", "parallel_norms"] = "serial"
    residual_scale: bool = False
    residual_weights: bool = False
    layer_scale: bool = False
    final_norm: bool = True
    embedding_scale: bool = False
    attention_softcap: float = Field(0.0, ge=0)
    logit_softcap: float = Field(0.0, ge=0)
    tied: bool = False
    head: bool = True
    head_bias: bool = False
    head_transform: bool = False
    head_transform_bias: bool = False
    logit_scale: bool = False
    fused_qkv: bool = True
    fused_gate_up: bool = True
    window: Count = 0
    pattern: tuple[Mixer, ...] = Field(("sliding",), min_length=1, max_length=2000)
    feeds: tuple[Feed, ...] = Field((), max_length=2000)
    kv_policy: Literal["windowed", "full"] = "windowed"
    attention: Literal["sdpa", "naive"] = "sdpa"
    dropout: bool = False
    sinks: bool = False
    sink_layers: Literal["all", "sliding"] = "all"
    experts: Count = 0
    zero_experts: Count = 0
    top_k: Count = 0
    expert_intermediate: Positive | None = None
    shared_intermediate: Count = 0
    shared_gate: bool = False
    expert_gated: bool | None = None
    dense_layers: Count = 0
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    score_bias: bool = False
    expert_bias: bool = False
    expert_norm: bool = False
    expert_sum_bias: bool = False
    expert_attention: bool = False
    mla: bool = False
    q_lora: Count = 0
    kv_lora: Count = 0
    nope_dim: Count = 0
    rope_dim: Count = 0
    value_dim: Count = 0
    index_heads: Count = 0
    index_dim: Count = 0
    index_kind: Literal["weighted", "heads"] = "weighted"
    index_pattern: tuple[bool, ...] = Field((True,), min_length=1, max_length=2000)
    prefill_logits: Literal["last", "all"] = "last"
    linear_dtype: str = ""
    expert_dtype: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> DecoderConfig:
        for heads in {self.heads, *self.heads_pattern}:
            for kv in {self.kv, *self.kv_pattern}:
                if heads % kv:
                    raise ValueError(f"heads = {heads} is no multiple of kv_heads = {kv}")
        if not self.mla and self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"head_dim is absent, and hidden / heads = {self.hidden} / {self.heads} is not whole")
        if self.rope and self.rotary % 2:
            raise ValueError("rotary embedding needs an even head width")
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k = {self.top_k} must be between 1 and experts = {self.experts}")
        if self.expert_attention and (not self.experts or self.heads != self.kv * self.top_k):
            raise ValueError("expert_attention needs experts, and heads = kv_heads * top_k")
        if self.mla and not all((self.kv_lora, self.nope_dim, self.rope_dim, self.value_dim)):
            raise ValueError("mla = true needs kv_lora, nope_dim, rope_dim and value_dim")
        if self.index_heads and self.index_dim < self.rotary:
            raise ValueError(f"index_dim = {self.index_dim} is less than the {self.rotary} columns that are rotated")
        if self.index_heads and self.index_kind == "weighted" and not (self.mla and self.q_lora):
            raise ValueError("index_kind = weighted needs mla = true and q_lora")
        if self.differential and any(number % 2 for number in (self.heads, self.kv, *self.kv_pattern)):
            raise ValueError("differential attention needs an even number of heads and of key-value heads")
        if self.rotary_dim > self.width:
            raise ValueError(f"rotary_dim = {self.rotary_dim} is more than a head's {self.width}")
        own = {self.mixer_of(layer) for layer in range(self.layers) if not self.shares(layer)}
        if lacking := sorted({self.mixer_of(layer) for layer in range(self.layers)} - own):
            raise ValueError(f"shared_layers = {self.shared_layers} leaves no {lacking[0]} layer to share with")
        if any(width % 2 for width in self.width_pattern):
            raise ValueError("rotary embedding needs an even head width")
        if "moe" in self.feeds and not self.experts:
            raise ValueError("feeds has moe, and there are no experts")
        if fault := self.state_fault(frozenset(self.pattern)):
            raise ValueError(fault)
        return self

    @property
    def kv(self) -> int:
        """Key-value heads."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def inner(self) -> int:
        """Inner size of the dense feed-forward block."""
        return self.intermediate or 4 * self.hidden

    @property
    def expert_inner(self) -> int:
        """Inner size of one expert."""
        return self.expert_intermediate or self.inner

    @property
    def rotary(self) -> int:
        """Columns of a head that are rotated."""
        return self.rope_dim if self.mla else self.rotary_dim or self.width

    def heads_of(self, layer: int) -> int:
        """Query heads of a layer."""
        return self.heads_pattern[layer % len(self.heads_pattern)] if self.heads_pattern else self.heads

    def sinks_in(self, layer: int) -> bool:
        """Whether a layer has a learned logit in its softmax."""
        return self.sinks and (self.sink_layers == "all" or self.window_of(layer) > 0)

    def kv_of(self, layer: int) -> int:
        """Key-value heads of a layer."""
        return self.kv_pattern[layer % len(self.kv_pattern)] if self.kv_pattern else self.kv

    def indexes(self, layer: int) -> bool:
        """Whether a layer picks the positions to attend to."""
        return bool(self.index_heads) and self.index_pattern[layer % len(self.index_pattern)]

    def out_bias_of(self, layer: int) -> bool:
        """Whether a layer's attention output projection has a bias."""
        return self.out_bias or (self.last_out_bias and layer == self.layers - 1)

    def width_of(self, layer: int) -> int:
        """Width of a head in a layer."""
        return self.width_pattern[layer % len(self.width_pattern)] if self.width_pattern else self.width

    def inner_of(self, layer: int) -> int:
        """Inner size of the dense feed-forward block of a layer."""
        return self.inner_pattern[layer % len(self.inner_pattern)] if self.inner_pattern else self.inner

    def shares(self, layer: int) -> bool:
        """Whether a layer attends to the keys and values of one before it."""
        return layer >= self.layers - self.shared_layers

    def mixer_of(self, layer: int) -> str:
        """What mixes positions in a layer."""
        return self.pattern[layer % len(self.pattern)]

    def feed_of(self, layer: int) -> str:
        """What follows it."""
        if self.feeds:
            return self.feeds[layer % len(self.feeds)]
        return "moe" if self.experts and layer >= self.dense_layers else "dense"

    def turns(self, layer: int) -> bool:
        """Whether a layer rotates queries and keys."""
        return self.rope and self.rope_pattern[layer % len(self.rope_pattern)]

    def norms_of(self, layer: int) -> tuple[bool, bool]:
        """Whether a layer has norms before its branches, and after them."""
        if not self.norms_after:
            return self.pre_norms, self.post_norms
        after = self.norms_after[layer % len(self.norms_after)]
        return not after, after

    def window_of(self, layer: int) -> int:
        """Positions that a layer attends to, 0 for all."""
        return self.window if self.pattern[layer % len(self.pattern)] == "sliding" else 0
