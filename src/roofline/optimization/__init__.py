"""What to change about a program, as plans that can be replayed, validated and taken back."""
