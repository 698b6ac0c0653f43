"""The parts of a listing: its rows, the folding of equal layers, and its forms as text, drawing and DOT."""
