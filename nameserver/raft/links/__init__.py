"""Links between members: connections, frames, authentication and TLS.

Code that carries bytes between members, and only between members, belongs here. Code that makes Raft's
decisions belongs to ``consensus``.

    transport.py       one link per pair of members: dials, accepts, splits bytes into frames, checks the link
    auth.py            the handshake in which both ends prove their identity, and the MAC of each frame
    tls.py             contexts for mutual TLS
"""
