"""One process: sockets, tasks, threads and clocks around the rest.

Here belongs all code that waits, and the start and the end of a broker.

    process.py             BrokerServer: one broker from its start to its end
    loading.py             reads the state from disk
    founding.py            the broker's name and the folder of its store
    access.py              accounts and networks that may send requests; requests about accounts
    upkeep.py              times and threads of writes to the disk
    disk_threads.py        runs steps of work on threads
    waiting_pulls.py       pulls that wait for messages
    rebalance_notices.py   notifies members of changed groups
    delay.py               delivers delayed messages
    registrar.py           registers this broker at nameservers
    nameserver_names.py    looks up names of nameservers, again and again
    namesrv_tls.py         certificates for connections to nameservers
    announcements.py       announces changed topics, many together
    registration.py        times and content of registrations (pure)
    http.py                /metrics, /healthz and /readyz
    metrics.py             the content of /metrics
    lag.py                 lag of groups, in messages and in time (pure)
    ending.py              signals and the end of the process
"""
