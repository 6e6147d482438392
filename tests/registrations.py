"""A registration as it came off the wire, made of the command that it would become."""

from __future__ import annotations

from nameserver.commands import RegisterBroker
from nameserver.registration import Registration
from remoting.registration import TopicNumbers


def as_it_came(command: RegisterBroker) -> Registration:
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
