"""The playground: three designs side by side, shown live, for a person who causes faults and watches.

Here belongs the program; its page is in ``web/``.

    model.py      everything that crosses HTTP, and the protocol
    picture.py    the picture, how a change alters it, and the log of changes (pure)
    judging.py    the worth of an answer (pure)
    orders.py     the sense of an order (pure)
    scene.py      the picture of one design, made of looks, readings and answers (pure)
    heard.py      settings of the clients' process, and its lines (pure)
    clients.py    the process of one design's clients
    readers.py    reads what each server knows
    stage.py      one design's processes, links and readings
    hub.py        tells pages of changes
    play.py       all designs, the log, orders, saving
    replay.py     a saved session, shown again
    http.py       the page, the stream of changes and the orders over HTTP
    program.py    from the command line to the end of everything that was started
"""
