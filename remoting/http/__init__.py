"""HTTP code of nameserver and broker: ports, host names, requests to an address server."""
