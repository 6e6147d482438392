"""Benchmark of RouteKeeper's raft mode against ZooKeeper, on one machine, in one run."""
