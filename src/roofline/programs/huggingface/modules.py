"""Names of modules in checkpoints, and the patterns by which quantisation leaves some of them out.

Patterns come from files that nobody vouches for, so none is run as a regular expression: what is understood are
literal names, ``*``, and of expressions ``.*``, ``\\.``, ``\\d+``, ``^``, ``$`` and ``(a|b)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from roofline.programs.huggingface.keys import Keys

#: What checkpoints call the parts of a matrix: by its name here, the parts that it is made of, each by all its names.
_ATTENTION = (("q_proj", "query", "q_lin", "c_attn", "query_key_value", "qkv_proj", "Wqkv"),
              ("k_proj", "key", "k_lin", "c_attn", "query_key_value", "qkv_proj", "Wqkv"),
              ("v_proj", "value", "v_lin", "c_attn", "query_key_value", "qkv_proj", "Wqkv"))  # fmt: skip
_GATED = (("gate_proj", "gate_up_proj", "w1"), ("up_proj", "gate_up_proj", "w3"))
_LEAVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "qkv": _ATTENTION,
    "qk": _ATTENTION[:2],
    "q": _ATTENTION[:1],
    "k": _ATTENTION[1:2],
    "v": _ATTENTION[2:],
    "out": (("o_proj", "out_proj", "c_proj", "dense", "out_lin", "Wo"),),
    "q_a": (("q_a_proj",),),
    "q_b": (("q_b_proj", "q_proj"),),
    "kv_a": (("kv_a_proj_with_mqa",),),
    "kv_b": (("kv_b_proj",),),
    "gate_up": _GATED,
    "gate": _GATED[:1],
    "up": (("up_proj", "fc1", "c_fc", "w1", "dense_h_to_4h", "lin1", "fc_in"),),
    "down": (("down_proj", "fc2", "c_proj", "w2", "dense_4h_to_h", "lin2", "fc_out"),),
    "gate_scalar": (("shared_expert_gate",),),
    "in_qkvz": (("in_proj_qkvz", "in_proj_qkv"), ("in_proj_qkvz", "in_proj_z")),
    "in_ba": (("in_proj_ba", "in_proj_b"), ("in_proj_ba", "in_proj_a")),
    "output_gate": (("g_proj",),),
    "forget_a": (("forget_gate.f_a_proj",),),
    "forget_b": (("forget_gate.f_b_proj", "forget_gate.f_proj"),),
    "gate_a": (("g_a_proj",),),
    "gate_b": (("g_b_proj", "g_proj"),),
    "strength_proj": (("b_proj",),),
}  # fmt: skip

#: What they call the blocks that matrices are in.
_BLOCKS = {
    "attn": ("self_attn", "attn", "attention", "self_attention"),
    "cross": ("encoder_attn", "EncDecAttention"),
    "mlp": ("mlp", "feed_forward", "ffn"),
    "moe": ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "experts"),
    "moe.shared": ("mlp.shared_expert", "mlp.shared_experts", "shared_expert", "shared_experts", "shared_mlp"),
    "mixer": ("mamba", "linear_attn", "mixer", "conv", "temporal_block", "self_attn"),
    "mixer.ssm": ("mamba",),
    "mixer.attn": ("self_attn",),
}

#: Where the layers are in the tree of modules.
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer|block)\.(\d{1,4}|\*)(?:\.|$)")

#: Modules that are never quantised here, or that other towers have.
_HARMLESS = re.compile(
    r"lm_head|embed|wte|wpe|norm|ln_|router|(^|\.|_)gate$|wg$|score|classifier|pooler|vision|visual|image|audio|"
    r"multi_modal|mm_|connector|projector|merger|conv1d|conv|mtp|A_log|dt_|rotary|output_layer|head"
)


@dataclass
class Pattern:
    """A pattern of module names."""

    text: str  #: As the config has it.
    layer: str  #: The layer that it names, ``*`` for all.
    globs: tuple[str, ...]  #: What the name inside the layer must look like, one of them.
    harmless: bool  #: Whether it names modules that stay as they are anyway.
    used: bool = False  #: Whether it named something.
    #: Whether it names a module, by the names that the module has inside its layer.
    seen: dict[tuple[str, ...], bool] = field(default_factory=dict)

    def names(self, part: tuple[str, ...]) -> bool:
        """Tell whether it names a module, by its layer and its names inside the layer."""
        layer, inside = part[0], part[1:]
        if self.layer not in ("*", layer):
            return False
        if inside not in self.seen:  # layers are alike, so a handful of modules answers for all
            self.seen[inside] = any(fnmatchcase(f".{name}.", glob) for glob in self.globs for name in inside)
        return self.seen[inside]


def modules(name: str) -> list[tuple[str, ...]]:
    """Return the modules that a matrix here is stored as: for each its layer and all its names inside it.

    Example:
        >>> modules("layers.3.attn.kv_a.weight")[0][:2]
        ('3', 'self_attn.kv_a_proj_with_mqa')
    """
    path = name.removesuffix(".weight").split(".")
    if "layers" not in path:
        return [("lm_head", "lm_head")]
    at = path.index("layers")
    scope, leaf = ".".join(path[at + 2 : -1]), path[-1]
    blocks = _BLOCKS.get(scope, (scope,))
    parts = _LEAVES.get(leaf, ((leaf,),))
    if scope == "moe.shared" and leaf == "gate_scalar":
        blocks = ("mlp",)
    return [(path[at + 1], *(f"{block}.{word}" for block in blocks for word in words)) for words in parts]


def patterns(c: Keys, texts: list[str]) -> list[Pattern]:
    """Return patterns from their texts.

    Raises:
        ModelDataError: One that is not understood; names it.
    """
    return [_pattern(c, text[:400]) for text in dict.fromkeys(texts)]


def _pattern(c: Keys, text: str) -> Pattern:
    words = [text]
    if text.startswith("re:"):
        words = _alternatives(c, text)
    layer, globs = "*", []
    for word in words:
        match = _LAYER.search(word)
        layer = match[1] if match else layer
        inside = word[match.end() :] if match else word
        globs.append(_glob(inside))
    harmless = all(_HARMLESS.search(word.rstrip("*.")) is not None for word in words)
    return Pattern(text, layer, tuple(globs), harmless)


def _glob(inside: str) -> str:
    """Return what a name with a dot before and after it must look like to have these components in a row."""
    core = inside.strip(".")
    if not core or core == "*":
        return "*"
    return f"*{'' if core.startswith('*') else '.'}{core}{'' if core.endswith('*') else '.'}*"


def _alternatives(c: Keys, text: str) -> list[str]:
    """Return the globs that a simple regular expression stands for."""
    plain = text.removeprefix("re:").lstrip("^").rstrip("$")
    for old, new in (("\\\\.", "."), ("\\.", "."), ("\\d+", "*"), ("[0-9]+", "*"), (".*", "*"), (".+", "*")):
        plain = plain.replace(old, new)
    globs = [plain]
    while len(globs) <= 64 and any("(" in glob for glob in globs):
        globs = [choice for glob in globs for choice in _expand_one(glob)]
    if len(globs) > 64 or not all(re.fullmatch(r"[\w.*-]*", glob) for glob in globs):
        c.fail("quantization_config", f"the pattern {text[:100]!r} is not understood; allowed: names, .* and (a|b)")
    return globs


def _expand_one(word: str) -> list[str]:
    match = re.search(r"\((?:\?:)?([\w.*|-]*)\)", word)
    if match is None:
        return [word.replace("(", "!")]  # not understood: fails the check of letters
    return [word[: match.start()] + choice + word[match.end() :] for choice in match[1].split("|")]
