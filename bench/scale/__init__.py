"""Measurements with other sizes, distances and numbers of servers than in the comparison: ``mqbench scale``.

A point is a combination of these properties. Most points differ from a base point in one property.

- ``points.py`` lists the points, and the time that each of them takes.
- ``series.py`` measures the points one after the other, and keeps the results as rows.
- ``others.py`` measures how much other programs used the machine meanwhile.
- ``curves.py`` makes curves and sentences from the rows.
- ``report.py`` makes the page.
"""
