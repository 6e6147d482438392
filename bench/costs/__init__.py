"""Unit costs: the price of one broker, topic, client, change or lookup, and the arithmetic with them."""
