"""RocketMQ's command line for administrators: its subcommands, flags and printed tables (of 5.3.3).

One module per group of subcommands. RouteKeeper differs in two ways. A failure ends with exit code 1 and one
line on stderr, where Apache's tool prints a Java trace and ends with 0. Subcommands that print tables take
``-o json``.
"""
