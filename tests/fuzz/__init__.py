"""Fuzzing: every input is accepted or refused, and its cost is bounded by its size."""
