"""Where the tensors of a program lie while it runs, and in which layout."""
