"""Links between members: dialling, framing, proof of the secret, TLS.

Here belongs code that brings bytes from one member to another, and to nobody else; ``consensus`` decides.

    transport.py       one link per pair of members: dialling, admission, framing, keep-alive
    auth.py            mutual challenge, and the MAC of every frame
    tls.py             contexts for mutual TLS
"""
