"""Settings: declared once, read from flags and files by rank, changed at run time by request 318.

Here belongs the definition of each setting and of the sources of its value. No code here acts on a setting.

    declared.py        every setting with its key, default, range and the relations between them
    command_line.py    flags
    ranking.py         which source wins
    changes.py         request 318, and the settings in force
    files.py           the small files: stored settings, KV configuration, token
"""
