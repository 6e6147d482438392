"""What may be set: declared once, read from flags and files by rank, changed at run time by request 318.

Here belongs what a setting is and where its value comes from; nothing that acts on one.

    declared.py        every setting with its key, default and range; flags, and which source wins
    files.py           the small files beside them: settings kept, KV configuration, token, directory lock
"""
