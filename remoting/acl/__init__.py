"""RocketMQ's access control list (4.9): accounts, signatures, and who may ask what. Pure.

plain_yaml.py    the part of YAML that the files need, with line numbers
addresses.py     addresses with wildcards and ranges, networks
accounts.py      plain_acl.yml
signing.py       signatures, and keys with which a server signs
rules.py         what each request code needs, at a broker and at a nameserver
access.py        the decision on one request
changes.py       requests that change plain_acl.yml
"""
