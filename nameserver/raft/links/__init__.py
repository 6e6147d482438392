"""Links between members: connections, frames, authentication and TLS.

Code belongs here if it carries bytes between members and has no other use. Code that makes Raft's decisions
belongs to ``consensus``.

    transport.py       one link for each pair of members: dials, accepts, and splits bytes into frames
    auth.py            the handshake in which both ends prove their identity, and the MAC of each frame
    tls.py             contexts for mutual TLS
"""
