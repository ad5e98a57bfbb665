"""Cut a JPEG to its upper rows, in a copy whose header gives the reduced height, so that a decoder stops there.

Most of the decoding time goes to the entropy-coded data, which can only be read from the start (ITU-T T.81,
annex F). Rows below a crop need not be read, and the rows above are decoded bit-identically.
"""

from __future__ import annotations

_START, _END = b"\xff\xd8", b"\xff\xd9"
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
"""Start of frame: baseline and extended sequential DCT with Huffman coding (T.81, table B.1)."""
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_SCAN = 0xDA
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})


def first_jpeg_rows(content: bytes, rows: int) -> bytearray | None:
    """Return the JPEG cut to the height ``rows``, or None if all of it has to be decoded.

    The whole image has to be decoded if it has no more rows, if it has several scans (as in progressive JPEGs, whose
    data depend on the height), or if the file is truncated, so that the decoder reports the truncation.

    A decoder of the result finds more data than rows, about which libjpeg warns. Colour interpolation needs one row
    more than is used.
    """
    if not content.startswith(_START) or not content.endswith(_END):
        return None
    at, frame, components = 2, 0, 0
    while at + 10 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF or marker in _STANDALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _SCAN:
            if not frame or content[at + 4] != components:
                return None
            shorter = bytearray(content)
            shorter[frame + 5 : frame + 7] = rows.to_bytes(2, "big")
            return shorter
        if marker in _FRAMES:
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            if marker not in _SEQUENTIAL_FRAMES or not 0 < rows < height:
                return None
            frame, components = at, content[at + 9]
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None
