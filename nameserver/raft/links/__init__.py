"""Links between members: dialling, framing, proof of the secret, TLS.

Code that carries bytes between members, and only between members, belongs here. Code that makes Raft's
decisions belongs to ``consensus``.

    transport.py       one link per pair of members: dialling, admission, framing, keep-alive
    auth.py            mutual challenge, and the MAC of every frame
    tls.py             contexts for mutual TLS
"""
