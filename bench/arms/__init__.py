"""The designs that are compared, behind one interface: who lists brokers, and how clients learn of them."""
