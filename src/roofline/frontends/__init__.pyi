from .hlo import from_hlo as from_hlo
from .hlo.buffers import Buffers as Buffers
from .hlo.buffers import read_buffers as read_buffers
from .jax import from_jax as from_jax
from .onnx import from_onnx as from_onnx
from .source import load_program as load_program
from .torch import from_torch as from_torch
