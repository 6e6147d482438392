"""Settings: declared once, read from flags and files by rank, changed at run time by request 318.

This package defines each setting and the sources of its value. No code here acts on a setting.

    declared.py        every setting with its key, default and range, and the rules that connect settings
    command_line.py    flags
    ranking.py         which source of a value wins
    changes.py         request 318, and the settings in force
    files.py           the small files: stored settings, KV configuration, token
"""
