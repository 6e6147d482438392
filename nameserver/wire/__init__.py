"""RocketMQ's protocol on a socket: requests to a mode and answers back; nothing here decides a route.

server.py          NameServer: dispatch, drain
notices.py         request 905 to brokers that registered from where they say they are
route_cache.py     answers to 105, encoded once per topic revision and dialect
"""
