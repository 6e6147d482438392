"""Links between members: dialling, framing, proof of the secret, TLS.

Here belongs how bytes of one member reach another and nobody else; ``consensus`` decides what is said.

    transport.py       one link per pair of members: who dials whom, who may connect; framing, keeping alive
    auth.py            mutual challenge, and the code on every frame
    tls.py             contexts for mutual TLS
"""
