"""Native code of onnx that works on what a file says: in a process of its own, where its crash is an error message."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from roofline.ir.errors import ModelDataError

#: What it may take: CPU time [s], and memory [byte]. It works out elements of shapes, as many as a file says.
SECONDS, MEMORY = 5, 4 * 2**30

_CALLS = {
    "infer": "onnx.shape_inference.infer_shapes(model, data_prop=True)",
    "inline": "onnx.inliner.inline_local_functions(model)",
}
_RUN = """
import json, sys
sys.path[:], seconds, memory = json.loads(sys.argv[1])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):  # not on every system; the time limit of the caller remains
    pass
import onnx, onnx.inliner, onnx.shape_inference
model = onnx.load_model_from_string(sys.stdin.buffer.read())
try:
    result = {call}
except Exception as error:
    sys.exit(str(error)[:200] or type(error).__name__)
sys.stdout.buffer.write(result.SerializeToString())
"""


def run(onnx: Any, what: str, model: Any, where: str) -> Any:
    """Return what onnx makes of a model.

    Args:
        onnx: The package.
        what: ``infer`` shapes, or ``inline`` functions.
        model: The model, without its weights.
        where: What to call it in errors.

    Raises:
        ModelDataError: It fails, crashes, or takes more than it may.
    """
    limits = json.dumps([sys.path, SECONDS, MEMORY])
    command = [sys.executable, "-c", _RUN.replace("{call}", _CALLS[what]), limits]
    try:
        done = subprocess.run(
            command, input=model.SerializeToString(), capture_output=True, timeout=3 * SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ModelDataError(f"{where}: onnx cannot {what} it: {type(error).__name__}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"ended by signal {-done.returncode}"]
        raise ModelDataError(f"{where}: onnx cannot {what} it: {lines[-1][:200]}")
    return onnx.load_model_from_string(done.stdout)
