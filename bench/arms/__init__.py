"""The designs that are compared, behind one interface: servers, brokers' sessions, clients' look-ups."""
