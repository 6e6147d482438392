"""A fuzzer, which tests that the code accepts or refuses every input, at a limited cost per byte."""
