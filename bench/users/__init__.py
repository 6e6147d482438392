"""Locust users of RocketMQ, one class a file.

``locust -f`` takes one of the files, or all by ``bench/locustfile.py``.
"""
