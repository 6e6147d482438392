"""The playground: three designs side by side, shown live, for a person who causes faults and watches.

This package is the program; its page is in ``web/``. An order is a command from a page, such as a fault. The
picture is the state of all designs, as a page shows it.

    model.py      all messages of the HTTP protocol between the program and its page
    picture.py    the picture, the effect of a change on it, and the log of changes
    judging.py    judgement of answers, such as right, stale or wrong
    orders.py     check of an order, its target, and the links that it cuts
    scene.py      the picture of one design, made from readings, answers and states of processes
    heard.py      settings of the clients' process, and the lines that it reads and writes
    clients.py    the process of one design's clients
    readers.py    reads the state that each server knows
    stage.py      one design's processes, links and readings
    hub.py        sends changes to pages
    play.py       all designs, the log, orders, saving
    replay.py     shows a saved session again
    http.py       the page, the stream of changes and the orders over HTTP
    program.py    the program, from its command line until all started processes have ended
"""
