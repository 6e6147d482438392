"""Messages on disk: the log, the files that lead into it, and what brings them back after a crash.

Here belongs what reads and writes files of the store, and nothing that knows topics, groups or requests.

    messages.py        MessageStore: all of this as one thing
    commit_log.py      the records, back to back in files
    log_scan.py        which records of a file are whole (pure)
    consume_queue.py   for each queue, entries that point into the log
    mending.py         entries that are damaged, found again
    message_index.py   messages by key
    recovery.py        log and queues agree after a crash
    journal.py         changes of a table, a line each
    retention.py       when old files go (pure)
    files.py           the disk, and files that are replaced as a whole
    steps.py           work with the disk in steps
"""
