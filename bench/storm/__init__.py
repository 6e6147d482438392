"""Storms: many brokers with many topics register, leave or return at once, at servers of any design.

Designs are independent mode, raft mode, RocketMQ's own nameservers and ZooKeeper.

One process runs all brokers. A second process, the bystander, asks for routes at the same time.
"""
