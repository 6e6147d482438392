"""Load for any RocketMQ cluster, as a Locust file: ``locust -f bench/locustfile.py --host 127.0.0.1:9876``.

Every kind of user has a file of its own in ``bench/users``, which works in the same way. The comparison's own
load, which also works with ZooKeeper and records every operation, is :mod:`routekeeper.bench.generator`.
"""

from routekeeper.bench.users.consumer_user import ConsumerUser
from routekeeper.bench.users.http_user import HttpUser
from routekeeper.bench.users.producer_user import ProducerUser
from routekeeper.bench.users.registrar_user import RegistrarUser
from routekeeper.bench.users.wire_user import WireUser

__all__ = ["ConsumerUser", "HttpUser", "ProducerUser", "RegistrarUser", "WireUser"]
