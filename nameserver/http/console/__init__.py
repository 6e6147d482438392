"""The console's half on the server: all nameservers against all brokers, a topic everywhere, the last events.

Here belongs what the page at ``/`` is made of beyond the lists. The nameserver asks its peers, never the
browser: once in two seconds at most, and only while a page is open.

    bodies.py          bodies of answers, as values
    addresses.py       which nameservers are asked, and which addresses never are; pure
    picture.py         what differs between nameservers, and the members that the group cannot lose; pure
    own.py             this nameserver's own part; pure
    asking.py          Peers: the questions, their pace and their deadlines
    resources.py       the resources below /v1/console
"""
