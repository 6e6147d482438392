"""One process: sockets, tasks, threads and clocks around the rest.

Here belongs what waits, and what starts and ends a broker.

    process.py             BrokerServer: one broker from its start to its end
    loading.py             what is on disk becomes a state
    founding.py            the broker's name and the place of its store
    access.py              accounts and networks that may ask something, and requests about accounts
    upkeep.py              when the disk is written, and by which thread
    disk_threads.py        steps of work on threads
    waiting_pulls.py       pulls that wait for messages
    rebalance_notices.py   members of changed groups are told
    delay.py               delayed messages are delivered
    registrar.py           nameservers are kept informed
    nameserver_names.py    names of nameservers, looked up again
    namesrv_tls.py         certificates for connections to nameservers
    announcements.py       changed topics go out together when many change
    registration.py        when that is due, and with what (pure)
    http.py                /metrics, /healthz and /readyz
    metrics.py             what /metrics tells
    lag.py                 how far groups are behind, in messages and in time (pure)
    ending.py              signals and the end of the process
"""
