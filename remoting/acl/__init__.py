"""RocketMQ's access control list (4.9): accounts, signatures, permissions. Only loading.py reads files.

plain_yaml.py    reader for the part of YAML that the files need; keeps line numbers
addresses.py     addresses with wildcards and ranges, networks
accounts.py      the accounts in plain_acl.yml
loading.py       finds and reads access files on disk
signing.py       signatures, and the keys with which requests are signed
rules.py         permissions for each request code, at a broker and at a nameserver
access.py        the decision on one request
changes.py       requests that change plain_acl.yml
"""
