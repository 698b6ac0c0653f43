"""The keys of a config, read one by one: under any of their names, with the defaults of their class, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from roofline.ir.errors import ModelDataError, did_you_mean
from roofline.programs.architectures.config import Family
from roofline.programs.architectures.decoder import FAMILIES

#: What absent keys mean, for each ``model_type`` those that its row reads: defaults of the classes of transformers,
#: version 5.24, written by ``scripts/huggingface_defaults.py``.
DEFAULTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("defaults.json").read_text(encoding="utf-8")
)  # fmt: skip

#: A size in a config beyond this is a mistake, and so are more layers than that.
MAX_SIZE = 10**9
#: Any other number is no larger.
MAX_NUMBER = 1e100
MAX_LAYERS = 2000

#: Keys that no cost depends on, though their names look as if.
_HARMLESS = frozenset({
    "aux_loss_coef", "begin_suppress_tokens", "bias_dropout", "block_multiple_of", "chunk_size_feed_forward",
    "classifier_pooling", "cross_attention_hidden_size", "decoder_sparse_output", "diversity_penalty",
    "encoder_no_repeat_ngram_size", "encoder_stride", "ep_size", "first_k_dense_dropout", "image_seq_length",
    "image_token_index", "initializer_cutoff_factor", "initializer_factor", "initializer_range", "layer_norm_eps",
    "logit_scale_init_value", "max_position_embeddings", "mm_tokens_per_image", "moe_norm_min", "n_ctx", "n_group",
    "n_positions", "no_repeat_ngram_size", "norm_topk_prob", "num_beam_groups", "num_beams", "num_image_tokens",
    "num_labels", "num_logits_to_keep", "num_mtp_layers", "num_nextn_predict_layers", "num_return_sequences",
    "original_max_position_embeddings", "output_router_logits", "pad_token_id", "pretraining_tp", "pruned_heads",
    "query_pre_attn_scalar", "rms_norm_eps", "rope_interleave", "router_aux_loss_coef", "router_jitter_noise",
    "scale_attn_by_inverse_layer_idx", "seq_aux", "sparse_pred_ignore_index", "sparse_prediction",
    "tie_encoder_decoder", "time_step_rank_scale", "topk_group", "topk_method", "use_falcon_mambapy",
    "use_mamba_kernels", "use_mambapy", "gate_soft_cap", "group_expert_routing", "num_experts_per_group",
    "auxiliary_channels", "auxiliary_num_convs", "use_auxiliary_head",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
})  # fmt: skip

#: What the name of a key that the cost depends on looks like.
_COSTLY = re.compile(
    r"^(num|n)_|_(size|dim|rank|layers?|heads?|freq|step|pattern|width|channels|types)$|kv_channels|state_dtype|cache_dtype|"
    r"expert|window|sparse|mamba|ssm|conv|lora|bias|quant|hybrid|latent|parallel|cross|embed_dim|ffn|inner|block|"
    r"bidirectional|index_topk|clip_qkv|soft_?cap|qk_(layer)?norm|(output|attn|attention|query)_gate$|gating$"
)

#: What the name of a key looks like that every config may have and no cost depends on: numerics, initialisation,
#: training, generation, tokens and their texts.
_SILENT = re.compile(
    r"^_|token_id|dropout|_?pdrop$|layerdrop|drop_path|(^|_)eps(ilon)?$|init|_std(_dev)?$|use_cache|cache_impl|attn_impl|apply_|version|"
    r"auto_map|torchscript|bfloat16|label|task|loss|jitter|norm_topk|router|routing|scal(e|ing)|multiplier|fp32|upcast|"
    r"suppress|^forced_|^summary_|^mask_|time_step|augment|problem_type|temperature|^top_[kp]$|^typical_p$|penalty|"
    r"early_stop|do_sample|^m(in|ax)_|bad_words|prefix|remove_invalid|return_dict|^output_|is_(encoder_)?decoder|"
    r"flash|^out_(features|indices)$|stage_names|chunk_size_feed|tokenizer|checkpointing|position|rope|rotary|theta|_length$|unsloth|language_model_only|architectures"
)

#: Keys of layers that predict further tokens, which a forward pass leaves out.
_FURTHER = re.compile(r"^(num_)?mtp_|_mtp_|nextn")

Reader = Callable[["Keys"], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A ``model_type``: how its config is read."""

    #: Functions of its keys, each for a group of them; together they give the options of the family.
    readers: tuple[Reader, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)  #: Options that are fixed in the code of its class.
    names: Mapping[str, str] = field(default_factory=dict)  #: What it calls a key, by what most call it.
    #: What absent keys mean, beside the defaults of its class.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: What the words of ``layer_types`` stand for, beside the usual ones.
    types: Mapping[str, str] = field(default_factory=dict)
    mixers: Callable[[Keys], list[str]] | None = None  #: The mixers of the layers where the config does not list them.
    family: Family = FAMILIES["decoder"]  #: How it is composed of layers, and which options there are.
    #: Options that follow from the end of the name in ``architectures``; the first is the default, and ``None`` is an
    #: end that is not understood.
    ends: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    #: Keys that published configs have and its class does not read, though their names look as if.
    idle: frozenset[str] = frozenset()


def row(*readers: Reader, names: Mapping[str, str] | None = None, defaults: Mapping[str, Any] | None = None,
        types: Mapping[str, str] | None = None, mixers: Callable[[Keys], list[str]] | None = None,
        family: Family = FAMILIES["decoder"], ends: Mapping[str, Mapping[str, Any] | None] | None = None,
        idle: Iterable[str] = (), **fixed: Any) -> Kind:  # fmt: skip
    """Return a kind from its readers and what is fixed, in a line of a table."""
    return Kind(readers, fixed, names or {}, defaults or {}, types or {}, mixers, family, ends or {}, frozenset(idle))


@dataclass
class Keys:
    """A config, and which of its keys were asked for."""

    where: str  #: The file, for errors.
    table: Mapping[str, Any]  #: The keys of the model.
    defaults: Mapping[str, Any]  #: What absent keys mean.
    kind: Kind  #: How they are read.
    used: set[str] = field(default_factory=set)  #: Keys that were understood.
    notes: list[str] = field(default_factory=list)  #: What a reader of the result should know.

    def name(self, key: str) -> str:
        """Return what the config calls a key: its class's own name, or the one that most use."""
        own = self.kind.names.get(key, key)
        return key if own not in self.table and key in self.table else own

    def get(self, key: str) -> Any:
        """Return the value, the default where it is absent."""
        name = self.name(key)
        self.used |= {key, name}
        return self.table[name] if name in self.table else self.defaults.get(name, self.defaults.get(key))

    def has(self, key: str) -> bool:
        """Tell whether the config or the class has the key."""
        return self.name(key) in {*self.table, *self.defaults}

    def size(self, key: str, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """Read a whole number; ``None`` where it is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        whole = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        if not whole or value != int(value):
            self.fail(key, f"expected a whole number from {least} to {most}, given {str(value)[:60]!r}")
        return int(value)

    def needed(self, key: str, most: int = MAX_SIZE) -> int:
        """Read a whole number that must be there."""
        value = self.size(key, most=most)
        if value is None:
            self.fail(key, "missing")
        return value

    def having(self, **values: Any) -> Keys:
        """Return the same config with some keys set; what is asked of either counts as understood."""
        return replace(self, table={**self.table, **values})

    def needs(self, **names: str) -> dict[str, int]:
        """Read whole numbers that must be there: options by the keys that hold them."""
        return {option: self.needed(key) for option, key in names.items()}

    def switches(self, **names: str) -> dict[str, bool]:
        """Read truth values: options by the keys that hold them."""
        return {option: self.switch(key) for option, key in names.items()}

    @property
    def layers(self) -> range:
        """The layers by number."""
        return range(self.needed("num_hidden_layers", MAX_LAYERS))

    def ignore(self, *names: str) -> None:
        """Mark keys as understood that nothing depends on, or only what is read in another way."""
        self.used.update(names)

    def per_layer(self, key: str, listed: list[str] | None, allowed: Iterable[str]) -> list[str] | None:
        """Check a list that has one of some words for each layer."""
        if listed is not None and (len(listed) != len(self.layers) or set(listed) - set(allowed)):
            choice, number = " or ".join(allowed), len(self.layers)
            self.fail(key, f"expected {choice} for each of {number} layers, given {str(listed[:4])[:120]}")
        return listed

    def sizes(self, key: str) -> list[int] | None:
        """Read a list of whole numbers; ``None`` where it is absent or null."""
        return self.items(key, "whole numbers", lambda item: type(item) is int and 0 <= item <= MAX_SIZE)

    def words(self, key: str) -> list[str] | None:
        """Read a list of words; ``None`` where it is absent or null."""
        listed = self.items(key, "words", lambda item: True)
        return None if listed is None else [str(word)[:60] for word in listed]

    def items(self, key: str, names: str, fits: Callable[[Any], bool]) -> list[Any] | None:
        """Read a list; ``None`` where it is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS or not all(map(fits, value)):
            self.fail(key, f"expected a list of {names}, given {str(value)[:60]!r}")
        return list(value)

    def one_of(self, key: str, meanings: Mapping[str, Any]) -> Any:
        """Return what a word stands for."""
        value = self.get(key)
        if not isinstance(value, str) or value not in meanings:
            near = did_you_mean(str(value)[:60], meanings)
            self.fail(key, f"{str(value)[:60]!r} is not understood; allowed: {', '.join(meanings)}{near}")
        return meanings[value]

    def switch(self, key: str) -> bool:
        """Read a truth value, false where it is absent or null."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            self.fail(key, f"expected true or false, given {str(value)[:60]!r}")
        return bool(value)

    def number(self, key: str) -> float:
        """Read a number that is not negative, 0 where it is absent or null."""
        return self.real(key, self.get(key))

    def real(self, key: str, value: Any) -> float:
        """Check a number that is not negative, 0 where it is null."""
        value = 0.0 if value is None or value is False else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
            self.fail(key, f"expected a number from 0, given {str(value)[:60]!r}")
        return float(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Read a table of keys, empty where it is absent or null."""
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.fail(key, f"expected a table of keys, given {str(value)[:60]!r}")
        return value

    def fail(self, key: str, why: str) -> NoReturn:
        """Raise an error that names the key."""
        raise ModelDataError(" ".join(f"{self.where}: {self.name(key)[:100]}: {why}".split()))

    def unread(self) -> tuple[str, ...]:
        """Return the keys that nothing has asked for.

        Those that are not known to be without a cost are noted.

        Raises:
            ModelDataError: The cost may depend on one of them.
        """
        left = sorted(str(key) for key in self.table if key not in self.used)
        said = [key for key in left if key not in _HARMLESS | self.kind.idle and not self.off(key)]
        further = [key for key in left if _FURTHER.search(key) and self.table.get(key)]
        for key in said:
            if _COSTLY.search(key) and key not in further:
                near = did_you_mean(key, self.used)
                known = ", ".join(sorted(self.used & set(map(str, self.table))))
                why = (
                    f"{str(self.table.get(key))[:60]} is not understood for model_type {self.table.get('model_type')!r}"
                )
                self.fail(key, f"{why}, and the cost may depend on it; understood: {known}{near}")
        if further:
            self.notes.append(f"layers that predict further tokens are left out: {', '.join(further)[:200]}")
        if strange := [key for key in said if key not in further and not _SILENT.search(key)]:
            names = " ".join(", ".join(strange)[:200].split())
            self.notes.append(f"not understood, and by its name no cost depends on it: {names}")
        return tuple(left)

    def off(self, key: str) -> bool:
        """Tell whether the value of a key says that there is none of what it stands for."""
        value = self.table.get(key)
        if key == "layer_types":  # the class would do the same without the list
            return isinstance(value, list | tuple) and set(map(str, value)) <= {"full_attention"}
        if value == 1 and value is not True and key.endswith(("shared_experts", "shared_expert")):
            return False
        if self.kind.fixed.get("qk_norm") and re.search("qk_(layer)?norm", key):
            return value is not False  # the class has the norms whatever the config says
        return value is not True and value in (None, False, 0, 1, "", [], {}, ())
