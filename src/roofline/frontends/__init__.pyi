from .jax import from_jax as from_jax
from .onnx import from_onnx as from_onnx
from .source import load_program as load_program
from .torch import from_torch as from_torch
