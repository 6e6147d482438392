"""Request 12: messages by key. This module accesses files only through the store.

Source: QueryMessageProcessor.queryMessage and DefaultMessageStore.queryMessage, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from typing import Final

from routekeeper.broker.errors import Refusal
from routekeeper.broker.store.message_index import FOUND_MAX, IndexEntry, keys_of
from routekeeper.broker.store.steps import no_work
from routekeeper.broker.tables.state import BrokerState, Call, Stepwise, Work
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.fields import QueryMessageFields, QueryMessageResponseFields
from routekeeper.remoting.message import StoredMessage, encode_message

#: Largest number of messages in one answer. Source: maxMsgsNumBatch.
RESULTS_MAX: Final = FOUND_MAX
#: Largest number of messages that a query by unique id returns. Source: defaultQueryMaxNum.
_UNIQUE_RESULTS: Final = 32
#: Largest answer in bytes. If the first message alone is larger, the answer has only this message.
_BYTES_MAX: Final = 4 << 20
#: Largest number of index entries that one query reads. Entries of deleted topics count, but give no result.
_READ_MAX: Final = 512
#: Bounds of one step: number of messages to read, and bytes of messages after which the step ends.
_TURN: Final = 8
_TURN_BYTES: Final = 1 << 20
#: Largest number of steps that update the index before a search. Each step indexes a short part of the log.
#: After a start, the index may lack a long part of the log, and no query may wait until all of it is indexed.
_CATCH_UP: Final = 64


def query_message(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 12: find the youngest messages with the requested key.

    The answer has these messages in the order of the commit log.

    Raises:
        Refusal: If the request asks for less than one message.
    """
    fields = QueryMessageFields.parse(call.request.ext_fields)
    count = _UNIQUE_RESULTS if fields.unique_key_query else fields.max_num
    if count < 1:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"maxNum={count} is outside 1..{RESULTS_MAX}")
    return Stepwise(_query(state, call, fields, min(count, RESULTS_MAX)), asked=call.request)


def _query(state: BrokerState, call: Call, fields: QueryMessageFields, count: int) -> Work:
    index = state.store.index
    yield from index.catch_up(_CATCH_UP)
    results: list[StoredMessage] = []
    size = read = size_read = 0
    for look in index.search(
        fields.topic, fields.key, begin_ms=fields.begin_timestamp, end_ms=fields.end_timestamp
    ):
        found: list[IndexEntry] = yield look
        for entry in found:
            if (read and read % _TURN == 0) or size_read >= _TURN_BYTES:
                yield no_work
                size_read = 0
            read += 1
            message = _wanted(state, fields, entry)
            if message is not None:
                size += len(message.body)
                size_read += len(message.body)
                if results and size > _BYTES_MAX:
                    count = len(results)
                else:
                    results.append(message)
            if len(results) >= count or read >= _READ_MAX:
                break
        if len(results) >= count or read >= _READ_MAX:
            break
    if not results:
        nothing = QueryMessageResponseFields(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        return call.request.reply(
            ResponseCode.QUERY_NOT_FOUND,
            remark="can not find message, maybe time range not correct",
            ext_fields=nothing.to_ext(),
        )
    newest = results[0]
    header = QueryMessageResponseFields(
        index_last_update_timestamp=newest.store_timestamp,
        index_last_update_phyoffset=newest.physical_offset,
    )
    results.sort(key=lambda message: message.physical_offset)
    return call.request.reply(ext_fields=header.to_ext(), body=b"".join(map(encode_message, results)))


def _wanted(state: BrokerState, fields: QueryMessageFields, entry: IndexEntry) -> StoredMessage | None:
    if not state.store.counts(fields.topic, entry.offset):
        return None  # the topic was deleted, so do not read the message from the disk
    message = state.store.message_at(entry.offset)
    if message is None or message.topic != fields.topic or fields.key not in keys_of(message.properties):
        return None  # the message was deleted, or has another key whose hash is the same
    return message
