"""What an exchange carries: messages for a client, and the step that it is to answer.

A request is the number of that step in the round, one byte, and then each message behind its own
step's number, one byte, and its length, four bytes, little-endian. The message of a route is a list
of sealed rows, each behind its sender's id, four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from hpcfl.errors import MessageError

_HEAD = struct.Struct("<BI")
NOTHING = 255  # in place of the step to answer: the messages are only to be taken


def pack(asked: int, messages: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the request that carries messages, each with the number of its step."""
    found = bytearray([asked])
    for number, message in messages:
        found += _HEAD.pack(number, len(message))
        found += message
    return bytes(found)


def unpack(request: bytes) -> tuple[int, Iterator[tuple[int, memoryview]]]:
    """Return the step to answer, and the messages of a request, each with its step's number."""
    if not request:
        raise MessageError("request", "the server", "it is empty")
    return request[0], _messages(memoryview(request)[1:])


def _messages(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while rest:
        if len(rest) < _HEAD.size:
            raise MessageError("request", "the server", "it ends within a message")
        number, size = _HEAD.unpack_from(rest)
        message, rest = rest[_HEAD.size : _HEAD.size + size], rest[_HEAD.size + size :]
        if len(message) < size:
            raise MessageError("request", "the server", "it ends within a message")
        yield number, message
