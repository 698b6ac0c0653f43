"""The update of a captured training step: which tensors are gradients, and which an optimizer keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.optim import optimizer as optim

from roofline.frontends.torch.program import Updates, Value

#: Arguments of plain operators that go by name.
_BY_NAME = frozenset({"alpha", "value", "dtype"})


class Steps:
    """What the optimizers of a program do to its weights, as its steps come by.

    Args:
        recorder: The :class:`~roofline.frontends.torch.record.Recorder` of the capture.
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.names: dict[str, None] = {}
        self.weights: dict[int, Value] = {}
        self.gradients: dict[int, int] = {}
        self.states: dict[int, None] = {}
        self._before: list[tuple[Any, Any]] = []
        self._warming = False
        self._hooks: list[Any] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See every step inside; afterwards optimizers keep what they kept before."""
        hook = optim.register_optimizer_step_pre_hook(self._step)
        # On an accelerator, PyTorch updates all tensors in one call where it can; on a CPU one by one.
        together = [mock.patch.object(module, "_get_foreach_kernels_supported_devices", return_value=["cpu"])
                    for module in (optim, torch.utils._foreach_utils) if not self.recorder.data]  # fmt: skip
        try:
            with ExitStack() as stack:
                for patch in together:
                    stack.enter_context(patch)
                yield
        finally:
            for each in (hook, *self._hooks):
                each.remove()
            for optimizer, state in self._before:
                optimizer.state.clear()
                optimizer.state.update(state)

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._warming:
            return
        if not any(optimizer is known for known, _ in self._before):
            self._before.append((optimizer, {key: dict(value) for key, value in optimizer.state.items()}))
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        for weight in weights:
            self._note(weight)
        if not optimizer.state and len(args) < 2 and not kwargs:  # the first is the optimizer itself
            self._warm(optimizer, weights)
        self.names[type(optimizer).__name__.lower()] = None
        for weight in weights:
            name = self.weights[id(weight)].name if id(weight) in self.weights else "state"
            for key, state in optimizer.state.get(weight, {}).items():
                for tensor in state if isinstance(state, list | tuple) else (state,):
                    if isinstance(tensor, torch.Tensor):
                        self.states[self.recorder.source(tensor, f"{name}.{key}", "buffer").number] = None

    def follow(self, weight: Any, value: Value) -> None:
        """Remember the gradient of a weight whenever it has a new one."""
        self.weights[id(weight)] = value
        if weight.requires_grad and weight.is_leaf:
            self._hooks.append(weight.register_post_accumulate_grad_hook(self._note))

    def note(self, weight: Any, gradient: Any) -> None:
        """Remember the gradient of a weight."""
        if id(weight) in self.weights and gradient is not None and not self._warming:
            self.gradients[self.weights[id(weight)].number] = self.recorder.value(gradient).number

    def _note(self, weight: Any) -> None:
        self.note(weight, weight.grad)

    def _warm(self, optimizer: Any, weights: Any) -> None:
        """Run the first step of all, which makes the states, unrecorded."""
        self._warming = True
        try:
            for weight in weights:
                self.recorder.save(weight)
            with self.recorder.paused():
                optimizer.step()
        finally:
            self._warming = False

    @property
    def result(self) -> Updates:
        """Return what the steps showed."""
        return Updates(tuple(self.gradients.items()), tuple(self.states), ", ".join(self.names))


def _unscale(gradients: Any, overflow: Any, scale: Any) -> None:
    for gradient in gradients:
        gradient.mul_(scale)


def _adam(p: Any, g: Any, states: Sequence[Any]) -> None:
    m, v, *largest = states
    m.lerp_(g, 0.1)
    v.mul_(0.9).addcmul_(g, g)
    root = (torch.maximum(largest[0], v, out=largest[0]) if largest else v).sqrt()
    p.addcdiv_(m, root / 2 + 1)


def _adamw(p: Any, g: Any, states: Sequence[Any]) -> None:
    p.mul_(0.9)
    _adam(p, g, states)


def _sgd(p: Any, g: Any, states: Sequence[Any]) -> None:
    for momentum in states:
        momentum.mul_(0.9).add_(g)
    p.add_(g, alpha=2)


def _adagrad(p: Any, g: Any, states: Sequence[Any]) -> None:
    states[0].addcmul_(g, g)
    p.addcdiv_(g, states[0].sqrt() + 1)


#: Fused optimizers, tensor by tensor: what is read, written and worked out, as ``_single_tensor_*`` of torch.optim has;
#: the numbers stand for what does not matter here.
_FUSED = {"_fused_adam_": _adam, "_fused_adamw_": _adamw, "_fused_sgd_": _sgd, "_fused_adagrad_": _adagrad}


def _fused(update: Callable[..., None], keys: Sequence[str], *args: Any, **kwargs: Any) -> None:
    named = {**dict(zip(keys, args, strict=False)), **kwargs}
    lists = [each for key, each in named.items() if isinstance(each, list | tuple) and each and key != "state_steps"]
    for parameter, gradient, *states in zip(*lists, strict=True):
        update(parameter, gradient, states)


#: What a gradient scaler runs over all gradients, and on its scale.
_SCALER: dict[str, Callable[..., Any]] = {
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "_amp_update_scale_": lambda scale, *_: scale.mul_(1),
}


def _plain(name: str) -> Callable[..., Any] | None:
    """Return the method of a tensor that does the same; in two steps where none does it in place."""
    plain: Callable[..., Any] | None = getattr(torch.Tensor, name, None)
    apart = getattr(torch.Tensor, name.rstrip("_"), None)
    if plain is None and apart is not None:
        return lambda x, *args, **kwargs: x.copy_(apart(x, *args, **kwargs))
    return plain


def one_by_one(func: Any) -> Callable[..., Any] | None:
    """Return a call over lists of tensors as calls for each of them; ``None`` for any other operator."""
    name = func._schema.name.rpartition("::")[2]
    if name in _SCALER:
        return _SCALER[name]
    keys = [argument.name for argument in func._schema.arguments]
    if name in _FUSED:
        return partial(_fused, _FUSED[name], keys)
    if not name.startswith("_foreach_"):
        return None
    plain = _plain(name.removeprefix("_foreach_"))
    if plain is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(keys, args, strict=False)), **kwargs}
        named = {"value" if key == "scalars" and "tensor1" in named else key: each for key, each in named.items()}
        count = max(len(each) for each in named.values() if isinstance(each, list | tuple))
        results = []
        for at in range(count):
            own = {key: each[at] if isinstance(each, list | tuple) else each for key, each in named.items()}
            options = {key: own.pop(key) for key in _BY_NAME.intersection(own)}
            own.pop("non_blocking", None)
            first = own.pop(keys[0])
            first = first if isinstance(first, torch.Tensor) else torch.full((), first)
            results.append(plain(first, *own.values(), **options))
        return results if func._schema.returns else None

    return run
