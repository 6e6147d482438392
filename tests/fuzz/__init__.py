"""Fuzzing: the code must accept or refuse every input, at a limited cost per byte of the input."""
