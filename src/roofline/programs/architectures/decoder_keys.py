"""The keys of a decoder in groups: sizes, tables and head, attention, latent attention, blocks, experts, state."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roofline.programs.architectures.config import Activation, Config, Count, Layers, PositionKeys, Positive, in_turn

#: What mixes positions in a layer: attention (to a window or to all), a state-space or other recurrent mixer, attention
#: beside one, or nothing. ``none`` is a layer that has a feed-forward block only.
Mixer = Literal[
    "sliding", "full", "mamba", "mamba2", "delta", "kda", "mlstm", "conv", "linear", "recurrent", "full+mamba2", "none"
]  # fmt: skip


class SizeKeys(Config):
    """Sizes."""

    hidden: Positive  #: Width of the residual stream.
    layers: Layers  #: Number of blocks.
    heads: Positive  #: Query heads.
    vocab: Positive  #: Rows of the token table.
    kv_heads: Positive | None = None  #: Key-value heads, ``heads`` when absent.
    #: Key-value heads of each layer, in turn, where they are not all ``kv_heads``.
    kv_pattern: tuple[Positive, ...] = Field((), max_length=2000)
    head_dim: Positive | None = None  #: Width of a head, ``hidden / heads`` when absent (which must then be whole).
    intermediate: Positive | None = None  #: Inner size of the dense feed-forward block, ``4 * hidden`` when absent.
    linear_dtype: str = ""  #: Number format of the layers' matrices, where it is not the file's.

    @property
    def width(self) -> int:
        """Width of a head."""
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"head_dim is absent, and hidden / heads = {self.hidden} / {self.heads} is not whole")
        return self.head_dim or self.hidden // self.heads

    @property
    def inner(self) -> int:
        """Inner size of the dense feed-forward block."""
        return self.intermediate or 4 * self.hidden


class TableKeys(PositionKeys):
    """What comes before the layers and after them."""

    embed_norm: bool = False  #: A norm of the embeddings (BLOOM).
    embedding_scale: bool = False  #: Whether embeddings are multiplied by a constant.
    final_norm: bool = True  #: A norm before the head.
    tied: bool = False  #: Whether the head is the token table.
    head: bool = True  #: Whether there is a head; a bare model ends in hidden states.
    head_bias: bool = False  #: Bias of the head.
    logit_scale: bool = False  #: Whether logits are multiplied by a constant.
    logit_softcap: float = Field(0.0, ge=0)  #: Soft bound of the logits, 0 for none.
    #: Whether a prefill computes logits of the ``last`` position or of ``all``.
    prefill_logits: Literal["last", "all"] = "last"


class AttentionKeys(Config):
    """Attention."""

    rope: bool = True  #: Whether queries and keys are rotated.
    rotary_dim: Count = 0  #: Columns of a head that are rotated, 0 for all.
    #: Whether a layer rotates, in turn over the depth.
    rope_pattern: tuple[bool, ...] = Field((True,), min_length=1, max_length=2000)
    alibi: bool = False  #: Whether a bias that falls with the distance is added to the scores.
    qkv_bias: bool = False  #: Biases of the q, k and v projections.
    qkv_clip: bool = False  #: Whether queries, keys and values are clamped (OLMo, DBRX).
    out_bias: bool = False  #: Bias of the attention output projection.
    qk_norm: bool = False  #: Norm of queries and keys.
    qk_norm_kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"  #: Kind of that norm.
    #: What shares a weight: every ``head``, none of the ``heads`` (each has its own), or the whole ``width``, which is
    #: then normalised at once.
    qk_norm_over: Literal["head", "heads", "width"] = "head"
    qk_norm_bias: bool = False  #: Shift of that norm.
    qk_norm_scale: bool = True  #: Scale of that norm; nanochat has none.
    attention_softcap: float = Field(0.0, ge=0)  #: Soft bound of the scores, 0 for none.
    sinks: bool = False  #: One learned logit per head in the softmax.
    #: One projection for q, k and v. Checkpoints often store three, but serving stacks and the measured programs run
    #: one; the parameters are the same.
    fused_qkv: bool = True
    window: Count = 0  #: Positions that a sliding layer attends to, 0 for all.
    #: What mixes positions in each layer, in turn over the depth; all sliding when there is a window.
    pattern: tuple[Mixer, ...] = Field(("sliding",), min_length=1, max_length=2000)
    #: ``windowed``: sliding layers keep ``min(C, window)`` positions; ``full``: all C, as an engine with one page size
    #: for all layers reserves.
    kv_policy: Literal["windowed", "full"] = "windowed"
    #: ``sdpa`` (one kernel) or ``naive`` (scores written out, every step its own kernel).
    attention: Literal["sdpa", "naive"] = "sdpa"


class LatentKeys(Config):
    """Multi-head latent attention."""

    mla: bool = False  #: Whether there is any. Only this switch turns it on; the five sizes below do not.
    q_lora: Count = 0  #: Rank of the query projection, 0 for a full one.
    kv_lora: Count = 0  #: Rank of the key-value latent.
    nope_dim: Count = 0  #: Head width without position.
    rope_dim: Count = 0  #: Head width that is rotated, one key for all heads.
    value_dim: Count = 0  #: Head width of values.


class BlockKeys(Config):
    """How a block is put together, and its dense feed-forward part."""

    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"  #: Kind of norm.
    norm_bias: bool = True  #: Shift of layer norms.
    norm_scale: bool = True  #: Scale of norms; OLMo has none.
    pre_norms: bool = True  #: Norms before attention and feed-forward.
    #: The norm before the first layer's attention; ModernBERT has none, its embeddings being normed.
    first_norm: bool = True
    post_norms: bool = False  #: Norms after attention and feed-forward, beside those before.
    sum_norms: bool = False  #: Norms of the sum with the residual, as the first GPT has them.
    #: ``serial``: feed-forward after attention; ``parallel``: both from one normed input; ``parallel_norms``: both from
    #: inputs of their own norms.
    block: Literal["serial", "parallel", "parallel_norms"] = "serial"
    residual_scale: bool = False  #: Whether what is added to the residual is multiplied by a constant.
    #: Whether training drops attention probabilities, the outputs of attention and feed-forward, and embeddings.
    dropout: bool = False
    activation: Activation = "silu"  #: Of the feed-forward block.
    gated: bool = True  #: Whether the feed-forward block has a gate.
    mlp_bias: bool = False  #: Biases of the feed-forward block.
    fused_gate_up: bool = True  #: One projection for gate and up, as for q, k and v.
    #: What follows the mixer in each layer, in turn; by ``experts`` and ``dense_layers`` when absent.
    feeds: tuple[Literal["dense", "moe", "none"], ...] = Field((), max_length=2000)


class ExpertKeys(Config):
    """Routed experts."""

    experts: Count = 0  #: Routed experts per layer, 0 for a dense model.
    top_k: Count = 0  #: Experts per token.
    expert_intermediate: Positive | None = None  #: Inner size of an expert, ``intermediate`` when absent.
    shared_intermediate: Count = 0  #: Inner size of the shared experts together, 0 for none.
    shared_gate: bool = False  #: Whether the shared experts' output is gated by a learned scalar.
    expert_gated: bool | None = None  #: Whether experts have a gate, as the dense block when absent.
    dense_layers: Count = 0  #: First layers that stay dense in a model with experts.
    router: Literal["softmax", "sigmoid"] = "softmax"  #: Over the router's logits.
    router_bias: bool = False  #: Bias of the router.
    score_bias: bool = False  #: Learned bias of the scores (DeepSeek-V3).
    expert_bias: bool = False  #: Biases of the experts.
    expert_dtype: str = ""  #: Number format of the experts' matrices, where it is not the file's.


class StateKeys(Config):
    """Mixers that keep a state of fixed size."""

    ssm_inner: Count = 0  #: Channels of the mixer.
    ssm_state: Count = 0  #: State of a channel.
    ssm_conv: Positive = 4  #: Taps of the convolution before the scan.
    #: Whether the cache keeps all ``kernel`` inputs of the convolution, as transformers does, or the ``kernel-1`` that
    #: the next step needs, as some engines do.
    ssm_conv_kept: Literal["kernel", "kernel-1"] = "kernel"
    ssm_heads: Count = 0  #: Heads of Mamba-2.
    ssm_groups: Positive = 1  #: Groups of Mamba-2 that share B and C.
    ssm_rank: Count = 0  #: Rank of Mamba-1's step projection.
    ssm_bias: bool = False  #: Biases of the mixer's input and output projections.
    ssm_conv_bias: bool = True  #: Bias of the convolution.
    ssm_norm: bool = True  #: Gated RMSNorm before Mamba-2's output projection.
    #: Norms of Mamba-1's step, B and C: ``scaled`` (Jamba) or ``plain``, without a weight.
    ssm_inner_norms: Literal["none", "scaled", "plain"] = "none"
    ssm_chunk: Positive = 256  #: Positions that a scan takes at a time.
    ssm_dtype: str = ""  #: Number format of the kept state of a scan, the cache's when empty.
    ssm_conv_dtype: str = ""  #: That of the convolution's kept inputs, the cache's when empty.
    delta_keys: Count = 0  #: Key heads of the gated delta rule.
    delta_values: Count = 0  #: Value heads of the gated delta rule.
    delta_key_dim: Count = 0  #: Width of a key head.
    delta_value_dim: Count = 0  #: Width of a value head.
    #: Rank of the projections to the decays and the output gate of Kimi's delta rule, 0 for full ones.
    delta_rank: Count = 0


class DecoderConfig(StateKeys, ExpertKeys, LatentKeys, BlockKeys, AttentionKeys, TableKeys, SizeKeys):
    """The keys of a decoder. Those that only one kind of checkpoint has are in a class derived from this one, beside
    the layers that read them.
    """

    @property
    def rotary(self) -> int:
        """Columns of a head that are rotated."""
        return self.rope_dim if self.mla else self.rotary_dim or self.width

    def kv_of(self, layer: int) -> int:
        """Return the key-value heads of a layer."""
        return in_turn(self.kv_pattern, layer, self.kv_heads or self.heads)

    def mixer_of(self, layer: int) -> str:
        """Return what mixes positions in a layer."""
        return self.pattern[layer % len(self.pattern)]

    def feed_of(self, layer: int) -> str:
        """Return what follows it."""
        return in_turn(self.feeds, layer, "moe" if self.experts and layer >= self.dense_layers else "dense")

    def rotates(self, layer: int) -> bool:
        """Tell whether a layer rotates queries and keys."""
        return self.rope and self.rope_pattern[layer % len(self.rope_pattern)]

    def window_of(self, layer: int) -> int:
        """Return the positions that a layer attends to, 0 for all."""
        return self.window if self.mixer_of(layer) == "sliding" else 0
