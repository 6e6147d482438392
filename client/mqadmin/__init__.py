"""RocketMQ's command line for administrators: its subcommands, flags and printed tables (of 5.3.3).

One module per group of subcommands. What RouteKeeper adds or changes: failures end with exit code 1 and one
line on stderr where Apache's tool prints a Java trace and ends with 0; ``-o json`` on what prints tables.
"""
