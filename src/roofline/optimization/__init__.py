"""What to change about a program, as plans that can be replayed, validated and taken back."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
