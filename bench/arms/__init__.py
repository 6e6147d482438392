"""The compared designs ("arms"): independent nameservers, nameservers in raft mode, or ZooKeeper.

Further designs repeat these designs as a control, or use RocketMQ's own programs.
Each design implements the same interfaces for its servers, its sessions and its look-ups.
"""
