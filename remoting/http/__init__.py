"""HTTP code that nameserver and broker share: ports, check of host names, requests to an address server."""
