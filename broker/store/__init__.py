"""Messages on disk: the commit log, the files that point into the log, and recovery after a crash.

This folder holds all code that reads and writes files of the store. No code in this folder knows topic
configurations, groups or requests.

    messages.py        MessageStore: the store as a whole
    commit_log.py      the records, back to back in files
    log_scan.py        finds the intact records in the content of a log file
    consume_queue.py   entries of each queue, which point into the log
    queues.py          all open queues, by topic and queue id
    mending.py         repairs damaged queue entries from the log
    message_index.py   index of messages by key
    recovery.py        makes log and queues consistent after a crash
    journal.py         changes of a table, appended line by line
    retention.py       decides which old files to remove
    files.py           the disk, and files that are replaced whole
    steps.py           work with the disk in steps
"""
