"""A Locust file that loads any RocketMQ cluster: ``locust -f bench/locustfile.py --host 127.0.0.1:9876``.

Every kind of user also has a Locust file of its own in ``bench/users``. The comparison uses another load,
:mod:`routekeeper.bench.generator`, which also works with ZooKeeper and records every operation.
"""

from routekeeper.bench.users.consumer_user import ConsumerUser
from routekeeper.bench.users.http_user import HttpUser
from routekeeper.bench.users.producer_user import ProducerUser
from routekeeper.bench.users.registrar_user import RegistrarUser
from routekeeper.bench.users.wire_user import WireUser

__all__ = ["ConsumerUser", "HttpUser", "ProducerUser", "RegistrarUser", "WireUser"]
