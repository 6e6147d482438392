"""HTTP that nameserver and broker have alike: their port with its connections and names, and questions to an
address server."""
