"""The same over HTTP: JSON for people, scripts and dashboards; nothing here decides a route.

app.py             HttpServer: routes, reads, limits
admin.py           what operators do to a raft group, behind a token
problems.py        errors as RFC 9457 says
metrics.py         Prometheus text
web/               the page, and the OpenAPI document
"""
