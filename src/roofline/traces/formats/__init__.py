"""The files of profilers, one module per format, and what they share: bytes, JSON, tables, numbers with units."""
