"""The route table over HTTP: JSON for people, scripts and dashboards.

This folder holds all code of the nameserver for HTTP, and the bodies of its answers. No code here decides
which route a topic has.

    app.py             the server, HttpServer: its paths and its limits
    reads.py           reads of the table
    shortcut.py        blocking route queries, answered without aiohttp
    lists.py           lists, page by page and in steps
    order.py           the sorted list of topics, updated by changes
    lane.py            the lane: a queue for long work on the table, run in short slices
    coding.py          JSON and gzip in steps, entity tags, cursors
    watch.py           the events that a watch sends, after a given event id
    watchers.py        the clients that watch, and their bounds
    admin.py           operators' changes of a raft group, which need a token
    kv.py              changes of KV values, with conditions
    token.py           checks of each change: the token, a deadline, a bounded body
    answers.py         bodies of answers, as typed values
    openapi.py         the descriptions of all handlers: their paths, and the OpenAPI document
    problems.py        errors in the format of RFC 9457
    metrics.py         metrics in Prometheus' text format
    console/           the data of the web page: all nameservers compared
    web/               the page
"""
