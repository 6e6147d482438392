"""RocketMQ's remoting protocol: codec and connection logic without IO; two thin drivers in ``transport``."""
