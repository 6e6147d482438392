"""Locust users of RocketMQ, a kind a file: each can be given to ``locust -f`` by itself, or all by
``bench/locustfile.py``."""
