"""Messages on disk: the log, the files that point into it, and their recovery after a crash.

Here belongs all code that reads and writes files of the store. No code here knows topics, groups or
requests.

    messages.py        MessageStore: the store as a whole
    commit_log.py      the records, back to back in files
    log_scan.py        finds the intact records of a file (pure)
    consume_queue.py   for each queue, entries that point into the log
    mending.py         repairs damaged entries from the log
    message_index.py   messages by key
    recovery.py        makes log and queues consistent after a crash
    journal.py         changes of a table, one line each
    retention.py       decides which old files to remove (pure)
    files.py           the disk, and files that are replaced whole
    steps.py           work with the disk in steps
"""
