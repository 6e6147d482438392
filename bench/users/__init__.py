"""Locust users that load a RocketMQ cluster; each file has one user class.

``locust -f`` takes one of the files, or all of them by ``bench/locustfile.py``.
"""
