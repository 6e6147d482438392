"""The route table over HTTP: JSON for people, scripts and dashboards; nothing here decides a route.

Here belongs what speaks HTTP, and the bodies that it carries.

    app.py             HttpServer: routes, limits
    reads.py           reads of the table
    shortcut.py        route queries that wait, from bytes to bytes
    lists.py           lists, page by page and in steps
    order.py           topics in order, brought up to date by what changed
    lane.py            that and other work on the table, in slices of the loop
    coding.py          JSON and gzip in steps, entity tags, cursors
    watch.py           what a watch sends, from an id on
    watchers.py        those who watch, and the bounds on them
    admin.py           what operators do to a raft group, behind a token
    kv.py              changes of KV values, on conditions
    token.py           what each change needs: the token, a deadline, a bounded body
    answers.py         bodies of answers, as values
    openapi.py         what each handler says that it serves: routes, and the OpenAPI document
    problems.py        errors as RFC 9457 says
    metrics.py         Prometheus text
    console/           the picture of all nameservers, for the page
    web/               the page
"""
