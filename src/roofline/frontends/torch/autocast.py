"""Autocast as on the accelerator that a program names, while it is captured on tensors that lie elsewhere.

PyTorch turns ``torch.autocast("cuda")`` off where there is no CUDA, and casts tensors on CUDA only. During a capture
it stays on, and the kernels behind its dispatch key are replaced by the same casts for tensors anywhere. The lists are
PyTorch's own, and differ from those of a CPU (a layer norm runs in fp32 here and in bf16 there). The casts stand above
autograd as PyTorch's do, so that the backward casts too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any
from unittest import mock

import torch
from torch.amp.autocast_mode import autocast
from torch.utils import _pytree as pytree

from roofline.frontends.torch.custom import AUTOCAST, KINDS, operators
from roofline.ir.errors import UsageError

# What runs in which format: aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP, _FP32, _FP32_SET_OPT_DTYPE
# and _PROMOTE; https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior. The recurrent layers of cuDNN
# are in aten/src/ATen/cudnn/AutocastRNN.cpp.
_LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
_scaled_dot_product_flash_attention scaled_dot_product_attention
""" + " ".join(f"{kind}.input" for kind in KINDS)
_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa norm.Scalar norm.ScalarOpt_dim
"""
_FP32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
#: Operators of :mod:`~roofline.frontends.torch.custom`, which stand for some of these.
_OWN = {"sdpa": "lower", "recurrent": "lower", "rms_norm": "fp32"}

_OFF = ('autocast("cuda"): {} before the capture, where PyTorch turns it off since there is no CUDA here; '
        "make it inside the program, where it is entered")  # fmt: skip
_SET = '{}: what is cast is known of regions inside the program; write with torch.autocast("cuda"): there'
_KEY = torch._C.DispatchKey.AutocastCUDA
_MADE = "_made_while_captured"


def policies() -> dict[str, str]:
    """Return what CUDA's autocast does with an operator's tensors, by its name and overload."""
    lists = {"lower": _LOWER, "fp32": _FP32, "fp32 result": _FP32_RESULT, "widest": _WIDEST}
    return {name: policy for policy, names in lists.items() for name in names.split()} | {
        "binary_cross_entropy": "none"
    }


class Autocast:
    """The casts of a capture: weights that are cast once, and the kernels that cast."""

    def __init__(self) -> None:
        self.library: list[Any] = []
        self.cache: dict[tuple[int, Any], tuple[Any, Any]] = {}

    def cast(self, dtype: Any, value: Any) -> Any:
        """Return a tensor in another format; that of a weight is kept until the outermost region ends."""
        if not _is_eligible(value) or value.dtype == dtype:
            return value
        leaf = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
        if not (leaf and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        key = (id(value), dtype)
        if key not in self.cache:
            self.cache[key] = value, value.to(dtype)
        return self.cache[key][1]

    def lowered(self, *tensors: Any) -> tuple[Any, ...]:
        """Return tensors as autocast hands them to a matmul, themselves where it is off."""
        device = next((name for name in ("cuda", "cpu") if torch.is_autocast_enabled(name)), None)
        if device is None:
            return tensors
        return tuple(self.cast(torch.get_autocast_dtype(device), tensor) for tensor in tensors)

    def register(self) -> None:
        """Put the casts behind CUDA's dispatch key, once."""
        if self.library:
            return
        own = operators()
        aten = {_operator(name): policy for name, policy in policies().items()}
        for space, table in {"aten": aten, "roofline": {getattr(own, k).default: p for k, p in _OWN.items()}}.items():
            self.library.append(torch.library.Library(space, "IMPL"))
            for op, policy in table.items():
                if op is not None:
                    self.library[-1].impl(op, partial(self.run, op, policy), _KEY.name, allow_override=True)

    def run(self, op: Any, policy: str, *args: Any, **kwargs: Any) -> Any:
        """Cast the tensors of a call as its policy says, then run it."""
        if policy == "none":
            raise RuntimeError("binary_cross_entropy is unsafe to autocast; use binary_cross_entropy_with_logits")
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            if policy == "fp32 result":
                return op(*args, **_fp32_result(op, args, kwargs))
            dtype = _FORMATS[policy]([leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_eligible(leaf)])
            args, kwargs = pytree.tree_map(partial(self.cast, dtype), (args, kwargs))
            return op(*args, **kwargs)

    def close(self) -> None:
        """Give PyTorch its own kernels back."""
        for library in self.library:
            library._destroy()
        self.library.clear()
        self.cache.clear()


#: The format of a call's tensors under each policy.
_FORMATS: dict[str, Callable[[list[Any]], Any]] = {
    "lower": lambda tensors: torch.get_autocast_dtype("cuda"),
    "fp32": lambda tensors: torch.float32,
    "widest": lambda tensors: reduce(
        torch.promote_types, (each.dtype for each in tensors), torch.get_autocast_dtype("cuda")
    ),
}


def _is_eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _operator(name: str) -> Any:
    """Return an overload of aten; ``None`` where this version of PyTorch has none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _fp32_result(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Ask for a result in fp32 where the caller asks for no format."""
    at = next(at for at, each in enumerate(op._schema.arguments) if each.name == "dtype")
    has_format = at < len(args) or kwargs.get("dtype") is not None
    return kwargs if has_format or not _is_eligible(args[0]) else {**kwargs, "dtype": torch.float32}


@contextmanager
def as_named(notes: dict[str, None]) -> Iterator[None]:
    """Run every autocast region inside as on the device that it names, and every step of a scaler as a finite one.

    Args:
        notes: Gets a word on scalers that are off.

    Raises:
        UsageError: A region of a device whose casts are not known, or one that PyTorch has turned off already.
    """
    _check_outside()
    current, guards = Autocast(), list[Any]()
    AUTOCAST.append(current.lowered)
    enter, leave = autocast.__enter__, autocast.__exit__

    def entered(region: Any) -> Any:
        _check(region)
        guards.append(None)
        if region.device == "cuda" and region._enabled:
            current.register()
            guards[-1] = torch._C._IncludeDispatchKeyGuard(_KEY)
            guards[-1].__enter__()
        return enter(region)

    def left(region: Any, *error: Any) -> Any:
        result = leave(region, *error)
        guard = guards.pop()
        if guard is not None:
            guard.__exit__(None, None, None)
        if not guards:
            current.cache.clear()
        return result

    def cast(value: Any, device: str, dtype: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_eligible(leaf) else leaf, value)

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler._enabled and not torch.cuda.is_available():
            notes["a gradient scaler is off, as PyTorch makes it where there is no CUDA: unscaling is not counted"] = (
                None
            )
        return scale(scaler, optimizer, *args, **kwargs)

    def finite(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    scale = torch.amp.GradScaler.step
    try:
        with (
            available(),
            mock.patch.object(torch.amp.GradScaler, "step", step),
            mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", finite),
            mock.patch.object(autocast, "__enter__", entered),
            mock.patch.object(autocast, "__exit__", left),
            _by_regions_only(guards),
            mock.patch.object(torch.amp.autocast_mode, "_cast", cast),
        ):
            yield
    finally:
        AUTOCAST.remove(current.lowered)
        current.close()


@contextmanager
def _by_regions_only(regions: list[Any]) -> Iterator[None]:
    """Refuse to turn autocast on in any other way than by a region, which does it in the same way."""
    switch = torch.set_autocast_enabled

    def switched(*args: Any) -> None:
        if not regions and True in args:
            raise UsageError(_SET.format("torch.set_autocast_enabled"))
        switch(*args)

    with mock.patch.object(torch, "set_autocast_enabled", switched):
        yield


@contextmanager
def available() -> Iterator[None]:
    """Let PyTorch make autocast regions and gradient scalers of CUDA where there is none."""
    start, common = autocast.__init__, torch.cuda.amp.common

    def made(region: Any, *args: Any, **kwargs: Any) -> None:
        start(region, *args, **kwargs)
        setattr(region, _MADE, True)

    with mock.patch.object(autocast, "__init__", made):
        if torch.cuda.is_available():
            yield
            return
        with (
            mock.patch.object(common, "amp_definitely_not_available", return_value=False),
            mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
        ):
            yield


def _check_outside() -> None:
    """Refuse a capture inside a region of CUDA, on or turned off by PyTorch."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    if torch.is_autocast_enabled("cuda"):
        raise UsageError(_SET.format("autocast is on around the capture"))
    if depth and not torch.cuda.is_available() and not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise UsageError(_OFF.format("entered"))


def _check(region: Any) -> None:
    """Refuse a region that would run unlike on its device."""
    device = region.device
    if region._enabled and device not in ("cuda", "cpu"):
        raise UsageError(f"autocast({device!r}): what it casts is known of cuda and of cpu; capture it as one of them")
    off = device == "cuda" and not region._enabled and not hasattr(region, _MADE)
    if off and not torch.cuda.is_available():
        raise UsageError(_OFF.format("made"))


@contextmanager
def refused() -> Iterator[None]:
    """Refuse autocast where a tracer would leave it out.

    Raises:
        UsageError: A region that is on is entered.
    """
    enter = autocast.__enter__

    def entered(region: Any) -> Any:
        if region._enabled:
            raise UsageError("it would drop autocast")
        return enter(region)

    with available(), mock.patch.object(autocast, "__enter__", entered):
        yield
