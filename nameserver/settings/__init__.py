"""Settings: declared once, read from flags and files by rank, changed at run time by request 318.

Here belongs what a setting is and where its value comes from; nothing that acts on one.

    declared.py        every setting with its key, default, range and the relations between them
    command_line.py    flags
    ranking.py         which source wins
    changes.py         request 318, and the settings in force
    files.py           the small files beside them: settings kept, KV configuration, token
"""
