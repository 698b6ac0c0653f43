"""Quantisation carried out: weights and activations rounded, what that costs in accuracy and gains in time."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
