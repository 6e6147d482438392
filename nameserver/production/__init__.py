"""The production environment of ``clusterTest``: routes of topics that are unknown here are asked there.

Here belongs what knows other nameservers as a client does. The wire asks it; nothing else here knows of it.

    kept.py        answers that are kept, and how many questions may be asked; pure
    asking.py      Production: the connections, the address server, deadlines
"""
