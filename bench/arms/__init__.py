"""The compared designs ("arms") behind one interface: servers, sessions of brokers, look-ups of clients."""
