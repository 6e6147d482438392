"""Settings: their declarations, their values from flags and files, and their changes by request 318.

This package defines each setting and the sources of its value. Other packages use the settings.

    declared.py        every setting with its key, default and range, and the rules that connect settings
    command_line.py    the flags of the command line
    ranking.py         the choice of a value if several sources give one
    changes.py         request 318, and the settings in force
    files.py           the small files: stored settings, KV configuration, token
"""
