"""A fuzzer. It tests that the code accepts or refuses every input, at a limited cost for each byte."""
