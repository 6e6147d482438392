"""RocketMQ's access control list (4.9): accounts, signatures, and permissions. Pure.

plain_yaml.py    the part of YAML that the files need, with line numbers
addresses.py     addresses with wildcards and ranges, networks
accounts.py      plain_acl.yml
signing.py       signatures, and a server's own keys
rules.py         permissions for each request code, at a broker and at a nameserver
access.py        the decision on one request
changes.py       requests that change plain_acl.yml
"""
