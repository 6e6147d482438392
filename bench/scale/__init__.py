"""Sizes, distances and numbers of servers at which the designs differ: ``mqbench scale``.

One thing varies at a time from a base. ``points.py`` says which points there are and how long they take,
``series.py`` measures them one after the other, ``curves.py`` makes curves and sentences of the rows, and
``report.py`` the page.
"""
