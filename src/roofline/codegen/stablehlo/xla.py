"""Hand a module of StableHLO to JAX: its parser, its verifier, and XLA on this machine's CPU.

Uses what jax and jaxlib themselves compile with, which is no public interface; written for jax 0.5 to 0.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from roofline.ir.errors import MissingExtra, UsageError


@contextmanager
def _parsed(text: str) -> Iterator[Any]:
    """Open a module; what MLIR or XLA say of it is an error of ours."""
    try:
        from jax._src.interpreters.mlir import make_ir_context
        from jaxlib.mlir import ir
    except ImportError:
        raise MissingExtra("checking and running StableHLO needs jax: pip install 'roofline[jax]'") from None
    try:
        with make_ir_context():
            module = ir.Module.parse(text)
            module.operation.verify()
            yield module
    except Exception as error:  # of MLIR's parser or of XLA, which have no base in common
        raise UsageError(f"the module is refused: {' '.join(str(error).split())[:300]}") from error


def verify(text: str) -> None:
    """Let JAX parse and verify a module.

    Raises:
        MissingExtra: jax is not installed.
        UsageError: JAX refuses the module.
    """
    with _parsed(text):
        pass


def compiled(text: str, optimize: bool = True) -> Any:
    """Compile a module with XLA for a CPU.

    Args:
        text: The module.
        optimize: Whether the machine code is to be fast; without, it is there in half the time.

    Returns:
        jaxlib's executable.

    Raises:
        MissingExtra: jax is not installed.
        UsageError: JAX or XLA refuses the module.
    """
    with _parsed(text) as module:
        from jax._src.lib import xla_client
        from jax.extend.backend import get_backend

        client: Any = get_backend("cpu")
        devices = xla_client.DeviceList(tuple(client.local_devices()[:1]))
        options = xla_client.CompileOptions()
        if not optimize:
            options.executable_build_options.debug_options.xla_backend_optimization_level = 0
        return client.compile_and_load(module, devices, options)


def optimised(text: str) -> str:
    """Return what XLA makes of a module for a CPU: HLO after its passes, which :func:`roofline.from_hlo` reads.

    Raises:
        MissingExtra: jax is not installed.
        UsageError: JAX or XLA refuses the module.
    """
    return str(compiled(text).hlo_modules()[0].to_string())


def _wide_numbers() -> Any:
    """Let jax hold numbers of 64 bits."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()


def run(text: str, arguments: Sequence[Any]) -> list[Any]:
    """Run a module on this machine's CPU.

    Args:
        text: The module.
        arguments: Arrays of the sizes and formats of its function's arguments.

    Returns:
        What it returns, in double precision.

    Raises:
        MissingExtra: jax is not installed.
        UsageError: JAX or XLA refuses the module.
    """
    program = compiled(text, optimize=False)
    import jax

    device = jax.devices("cpu")[0]
    with _wide_numbers():
        buffers = [jax.device_put(np.asarray(array), device) for array in arguments]
    try:
        results = program.execute(buffers)
    except RuntimeError as error:  # what XLA says of sizes and formats
        raise UsageError(f"the arguments are refused: {' '.join(str(error).split())[:300]}") from error
    return [np.asarray(each).astype(np.float64) for each in results]
