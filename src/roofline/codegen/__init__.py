"""Programs written down in the languages of compilers, and the loops that those are made of."""
