"""The route table over HTTP: JSON for people, scripts and dashboards.

Here belongs all code that speaks HTTP, and the bodies of its answers. No code here decides a route.

    app.py             HttpServer: routes, limits
    reads.py           reads of the table
    shortcut.py        waiting route queries, answered without aiohttp
    lists.py           lists, page by page and in steps
    order.py           the sorted list of topics, updated by changes
    lane.py            long work on the table, in slices of the loop
    coding.py          JSON and gzip in steps, entity tags, cursors
    watch.py           the events that a watch sends, from an id on
    watchers.py        the watchers and their bounds
    admin.py           operators' changes of a raft group, behind a token
    kv.py              changes of KV values, on conditions
    token.py           checks of each change: the token, a deadline, a bounded body
    answers.py         bodies of answers, as values
    openapi.py         the descriptions of all handlers: routes, and the OpenAPI document
    problems.py        errors in the format of RFC 9457
    metrics.py         Prometheus text
    console/           the picture of all nameservers, for the page
    web/               the page
"""
