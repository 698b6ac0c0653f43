"""What everything is written in: sizes, number formats, units, errors, and the graph of a program."""
