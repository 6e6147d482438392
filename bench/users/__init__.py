"""Locust users that load a RocketMQ cluster. Each file has one user class.

``locust -f FILE`` starts the users of one file, and ``bench/locustfile.py`` starts all users.
"""
