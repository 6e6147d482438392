"""The compared designs ("arms").

One interface gives access to their servers, and to sessions and look-ups.
"""
