"""Links between members: dialling, framing, proof of the secret, TLS; ``consensus`` decides what is said.

transport.py       one link per pair of members, on the event loop
auth.py            mutual challenge, and the code on every frame
tls.py             contexts for mutual TLS
"""
