"""The console's half on the server: all nameservers against all brokers, a topic everywhere, the last events.

Here belongs the data of the page at ``/``, except for the lists. The nameserver asks its peers, the
browser never does: at most once in two seconds, and only while a page is open.

    bodies.py          bodies of answers, as values
    addresses.py       which nameservers are asked, and which addresses never are; pure
    picture.py         the differences between nameservers, and the members that the group cannot lose; pure
    own.py             this nameserver's own part; pure
    asking.py          Peers: the questions, their pace and their deadlines
    resources.py       the resources below /v1/console
"""
