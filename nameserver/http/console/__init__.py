"""The console's server part: a comparison of all nameservers and brokers, and their last events.

This folder makes the data for the page at ``/``, except its list of topics (``lists.py``). The nameserver
requests data from the other nameservers (its peers); the browser never does. The nameserver sends these
requests at most once in two seconds, and only while a page is open.

    bodies.py          bodies of answers, as typed values
    addresses.py       choice of the nameservers to ask; addresses that are never asked; no I/O
    picture.py         the differences between nameservers, and the members that the group cannot lose; no I/O
    own.py             this nameserver's own data; no I/O
    asking.py          Peers: the requests to peers, their rate and their deadlines
    resources.py       the resources below /v1/console
"""
