"""The receiving half of a stream of frames with payloads.  Sans-I/O.

Where frames.Parser takes bytes, a Receiver hands out memory: whoever reads the socket fills
buffer() and says how much came, so that a payload lands straight in its destination::

    buffer() --> inbox:        | header | body | header | bo...      one read, many frames
             --> destination:  | payload .....                      no copy in between
             --> scratch:      | payload that nobody waits for      read and thrown away

    loop:  frame = next()  or  filled(recv_into(buffer()))

Only the reply that expect() named may have a destination; any other payload goes to scratch, so a
reply that comes after its caller has left can neither write into that caller's memory nor shift
the stream.
"""

from __future__ import annotations

from anchorstore.errors import InvalidRequest
from anchorstore.transport import frames

INBOX_BYTES = 64 * 1024  # a reply to a Lookup of 2,000 pages in one read
SCRATCH_BYTES = 256 * 1024


class Receiver:
    """Cuts one connection's bytes into frames; InvalidRequest means that the stream is lost."""

    def __init__(self, *, payload_bytes_max: int = frames.PAYLOAD_BYTES_MAX) -> None:
        self._payload_bytes_max = payload_bytes_max
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = self._stop = 0  # bytes of the inbox that are not cut yet
        self._header: frames.Header | None = None  # of the frame that is being received
        self._body = b""
        self._payload_left = 0
        self._into: memoryview | None = None  # what is left of the payload's destination
        self._scratch: memoryview | None = None
        self._expected: tuple[int, memoryview | None] = (0, None)

    def expect(self, call_id: int, into: memoryview | None) -> None:
        """Says where the payload of the reply to `call_id` goes; it must fill `into` exactly."""
        self._expected = (call_id, into)

    @property
    def writes_into_destination(self) -> bool:
        """Whether bytes still to come belong into a caller's memory."""
        return self._into is not None

    def buffer(self) -> memoryview:
        """Memory for the next bytes of the stream; never empty."""
        if self._payload_left:
            if self._into is not None:
                return self._into
            if self._scratch is None:
                self._scratch = memoryview(bytearray(SCRATCH_BYTES))
            return self._scratch[: self._payload_left]
        if self._start == self._stop:
            self._start = self._stop = 0
            if len(self._inbox) > INBOX_BYTES:
                self._inbox = memoryview(bytearray(INBOX_BYTES))
        elif self._stop == len(self._inbox):
            self._make_room()
        return self._inbox[self._stop :]

    def filled(self, size: int) -> None:
        """`size` bytes of the last buffer() have come."""
        if not self._payload_left:
            self._stop += size
            return
        self._payload_left -= size
        if self._into is not None:
            self._into = self._into[size:] if self._payload_left else None

    def next(self) -> frames.Frame | None:
        """The next whole frame, its payload delivered; None where more bytes are needed."""
        if self._header is None and not self._open():
            return None
        if self._payload_left:
            return None
        assert self._header is not None
        frame = frames.Frame(self._header, self._body)
        self._header = None
        return frame

    def _open(self) -> bool:
        """Cuts header and body off the inbox, and what it holds of the payload."""
        start, held = self._start, self._stop - self._start
        if held < frames.HEADER_BYTES:
            return False
        header = frames.parse_header(
            self._inbox[start : start + frames.HEADER_BYTES],
            payload_bytes_max=self._payload_bytes_max,
        )
        size = frames.HEADER_BYTES + header.body_bytes
        if held < size:
            self._want(size)
            return False
        self._header = header
        self._body = bytes(self._inbox[start + frames.HEADER_BYTES : start + size])
        self._start += size
        if header.payload_bytes:
            self._open_payload(header)
        return True

    def _open_payload(self, header: frames.Header) -> None:
        call_id, into = self._expected
        self._payload_left = header.payload_bytes
        if call_id == header.call_id and into is not None:
            if len(into) != header.payload_bytes:
                raise InvalidRequest(
                    f"reply to call {call_id}: payload of {header.payload_bytes} bytes, "
                    f"expected {len(into)}"
                )
            self._into = into
        while self._payload_left and self._start < self._stop:
            target = self.buffer()
            size = min(len(target), self._stop - self._start)
            target[:size] = self._inbox[self._start : self._start + size]
            self._start += size
            self.filled(size)

    def _want(self, size: int) -> None:
        """Makes an inbox that holds a frame of `size` bytes."""
        if size > len(self._inbox):
            self._move(memoryview(bytearray(size)))

    def _make_room(self) -> None:
        assert self._start > 0 or self._stop < len(self._inbox), "a frame larger than the inbox"
        self._move(memoryview(bytearray(len(self._inbox))))

    def _move(self, inbox: memoryview) -> None:
        held = self._stop - self._start
        inbox[:held] = self._inbox[self._start : self._stop]
        self._inbox, self._start, self._stop = inbox, 0, held
