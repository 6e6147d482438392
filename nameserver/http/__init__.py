"""The same over HTTP: JSON for people, scripts and dashboards; nothing here decides a route.

app.py             HttpServer: routes, reads, limits
admin.py           what operators do to a raft group, behind a token
answers.py         bodies of answers, as values
openapi.py         what each handler says that it serves: routes, and the OpenAPI document
problems.py        errors as RFC 9457 says
metrics.py         Prometheus text
web/               the page
"""
