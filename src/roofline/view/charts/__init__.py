"""What :mod:`roofline.plot` draws with: points and ceilings, label placement, style, files."""
