"""The broker's process: sockets, tasks, threads and clocks around the handlers and the store.

This folder holds all code of the broker that waits, and the start and the end of the process.

    process.py             BrokerServer: one broker from its start to its end
    loading.py             reads the state from disk
    founding.py            the broker's name and the folder of its store
    access.py              accounts and networks that may send requests; requests about accounts
    upkeep.py              schedule and threads of writes to the disk
    disk_threads.py        runs steps of work on threads
    waiting_pulls.py       pulls that wait for messages
    rebalance_notices.py   notifies members of changed groups
    delay.py               delivers delayed messages
    registrar.py           registers this broker with nameservers
    nameserver_names.py    looks up nameservers' names periodically
    namesrv_tls.py         certificates for connections to nameservers
    announcements.py       announces changed topics; several changes may share one announcement
    registration.py        times and content of registrations
    http.py                /metrics, /healthz and /readyz
    metrics.py             the content of /metrics
    lag.py                 lag of groups, in messages and in time
    ending.py              signals and the end of the process
"""
