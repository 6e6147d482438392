"""Registrations: read, as they came off the wire, and decided among other requests."""

from __future__ import annotations

from typing import Any

from routekeeper.nameserver.commands import RegisterBroker
from routekeeper.nameserver.handlers import Decision, decide, decide_registration
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.registration import PlainRegistration, TopicNumbers, reading_registration
from routekeeper.remoting.steps import finish


def read_registration(body: bytes, *, compressed: bool, version: int, **limits: Any) -> PlainRegistration:
    """Read the body of a registration as a nameserver does, all steps at once."""
    return finish(reading_registration(body, compressed=compressed, version=version, **limits))


def decided(view: RouteView, request: Request, settings: NamesrvSettings, *, uptime_s: float) -> Decision:
    """Decide any request as modes do, which have registrations decoded first."""
    if request.code != RequestCode.REGISTER_BROKER:
        return decide(view, request, settings, uptime_s=uptime_s)
    decoded = decode_registration(request)
    return decoded if isinstance(decoded, Answer) else decide_registration(view, decoded, settings)


def as_it_came(command: RegisterBroker) -> Registration:
    """Return it as it is before it becomes a command."""
    return Registration(
        broker=command.broker,
        broker_name=command.broker_name,
        broker_id=command.broker_id,
        ha_server_addr=command.ha_server_addr,
        lease_ms=command.lease_ms,
        enable_acting_master=command.enable_acting_master,
        zone_name=command.zone_name,
        data_version=command.data_version,
        table={
            queues.topic: TopicNumbers(
                queues.topic,
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
                queues.topic_sys_flag,
            )
            for queues in command.topics
        },
        filter_servers=command.filter_servers,
        mappings=command.mappings,
    )
