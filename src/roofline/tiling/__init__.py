"""What tiles of a computation move between the memory levels of a chip, and the least that any schedule moves."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
