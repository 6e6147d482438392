"""The administration tool ``mqadmin``, with the subcommands, flags and tables of RocketMQ 5.3.3.

There is one module for each group of subcommands. RouteKeeper differs from RocketMQ in two ways:

- A failure prints one line on stderr and ends with exit code 1. RocketMQ's tool prints a Java trace and ends
  with 0.
- Subcommands that print tables accept ``-o json``.
"""
