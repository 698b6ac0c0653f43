"""Pointwise operators by every name that a framework gives them: PyTorch and JAX in lower case, ONNX in capitals.

A name stands for an operator of the registry or, where that has none, for floating-point operations per element: a
transcendental function counts one, a comparison or a choice none.
"""

from __future__ import annotations

_SPELLINGS: dict[str | int, str] = {
    "abs": "abs absolute Abs",
    "add": "add add_any Add",
    "cast": "Cast CastLike",
    "clamp": "clamp clamp_min clamp_max Clip",
    "copy": "copy",
    "cos": "cos Cos",
    "div": "div true_divide Div",
    "dropout": "dropout",
    "erf": "erf Erf",
    "exp": "exp elu celu selu Exp",
    "gelu": "com.microsoft.Gelu",
    "hardsigmoid": "hardsigmoid HardSigmoid",
    "hardswish": "hardswish HardSwish",
    "log": "log Log",
    "maximum": "maximum fmax max Max",
    "minimum": "minimum fmin min Min",
    "mish": "mish Mish",
    "mul": "mul prelu _prelu_kernel Mul",
    "neg": "neg Neg",
    "pow": "pow Pow",
    "quick_gelu": "com.microsoft.QuickGelu",
    "reciprocal": "reciprocal Reciprocal",
    "relu": "relu threshold leaky_relu Relu",
    "relu6": "relu6 hardtanh",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid logistic Sigmoid",
    "silu": "silu Swish",
    "sin": "sin Sin",
    "softplus": "softplus log_sigmoid_forward Softplus",
    "sqrt": "sqrt Sqrt",
    "square": "square",
    "sub": "sub rsub Sub",
    "tanh": "tanh Tanh",
    "where": "where Where",
    0: "eq ne lt le gt ge eq_to lt_to le_to Equal Greater GreaterOrEqual Less LessOrEqual "
       "logical_and logical_or logical_not logical_xor and or xor not And Or Xor Not "
       "bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ "
       "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift "
       "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ shift_left shift_right_logical "
       "shift_right_arithmetic population_count clz mulhi "
       "floor ceil round trunc frac sign sgn Sign Floor Ceil Round reduce_precision "
       "isnan isinf isfinite is_finite isin signbit isposinf isneginf IsNaN IsInf "
       "bucketize searchsorted nan_to_num heaviside copysign select_n ThresholdedRelu Trilu com.microsoft.Trilu",
    1: "exp2 expm1 log2 log10 log1p tan asin acos atan atan2 sinh cosh asinh acosh atanh "
       "Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh erfc erfinv erf_inv lgamma digamma cbrt "
       "bessel_i0e bessel_i1e zeta floor_divide fmod remainder rem Mod xlogy hypot logaddexp special_xlog1py "
       "polar angle complex LeakyRelu PRelu Shrink",
    2: "Softsign dequantize",
    3: "addcmul addcdiv lerp mse_loss dist kl_div quantize_per_tensor Elu",
    4: "smooth_l1_loss huber_loss glu _fake_quantize Selu Celu",
    6: "binary_cross_entropy",
    7: "binary_cross_entropy_with_logits",
}  # fmt: skip

#: A registry operator, or floating-point operations per element, by name.
POINTWISE: dict[str, str | int] = {name: what for what, names in _SPELLINGS.items() for name in names.split()}
