"""The same over HTTP: JSON for people, scripts and dashboards; nothing here decides a route.

app.py             HttpServer: routes, reads, limits
admin.py           what operators do to a raft group, behind a token
answers.py         bodies of answers, as values
openapi.py         the OpenAPI document, made from those
problems.py        errors as RFC 9457 says
metrics.py         Prometheus text
web/               the page
"""
