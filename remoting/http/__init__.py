"""The HTTP port that nameserver and broker have alike: its connections, and the names it answers to."""
