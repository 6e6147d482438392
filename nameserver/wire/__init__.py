"""RocketMQ's protocol on a socket: requests to a mode and answers back; nothing here decides a route.

server.py          NameServer: dispatch, request 905, drain
route_cache.py     answers to 105, encoded once per topic revision and dialect
"""
