"""HTTP code that nameserver and broker share: HTTP ports, checks of host names, address server requests."""
