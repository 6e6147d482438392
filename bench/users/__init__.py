"""Locust users of RocketMQ, with one user class per file.

``locust -f`` takes one of the files, or all of them by ``bench/locustfile.py``.
"""
