"""The compared designs behind one interface: servers, brokers' sessions, clients' look-ups."""
