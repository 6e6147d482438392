"""Unit costs: the cost of one broker, topic, client, change or look-up, and sums of such costs."""
