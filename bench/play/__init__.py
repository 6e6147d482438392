"""The playground, in which a person causes faults in three designs and watches all three side by side.

This package is the program. Its page is in ``web/``. In the code, an order is a command from the page, such
as a command to cause a fault. A picture is the state of all designs that the page shows.

    model.py      all messages of the HTTP protocol between the program and its page
    picture.py    the state that the page shows, the effect of a change on this state, and the log of changes
    judging.py    judges whether an answer is right, stale or wrong
    orders.py     the check of a command, its target, and the links that it cuts
    scene.py      the shown state of one design, made from readings, answers and states of processes
    heard.py      settings of the clients' process, and the lines that it reads and writes
    clients.py    the process of one design's clients
    readers.py    reads the state of each server
    stage.py      starts, observes and breaks one design's processes and links
    hub.py        sends changes to pages
    play.py       runs all designs, logs changes, executes commands, saves sessions
    replay.py     shows a saved session again
    http.py       serves the page and the stream of changes over HTTP, and accepts commands
    program.py    the program, from its command line until all started processes have ended
"""
