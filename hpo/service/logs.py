"""The server's log on stderr: one line for each event, as text or as JSON.

Anything that a client sent is escaped, so that each line is one event. No token, query or body is ever logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

ACCESS = logging.getLogger("hpo.service.access")
LOG = logging.getLogger("hpo.service")


class JsonLines(logging.Formatter):
    """``{"at", "level", "logger", "message", ...}``, with the values of ``extra={"fields": ...}`` as further keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of ASCII JSON."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """``12:34:56 message``; a traceback follows on separate, indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of text, control characters escaped, and the lines of a traceback."""
        request = getattr(record, "fields", {}).get("request_id")
        line = (
            f"{datetime.fromtimestamp(record.created):%H:%M:%S} {_escaped(record.getMessage())}"
            f"{f' [{request}]' if request else ''}"
        )
        # the message of an exception may be what a client sent
        lines = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join([line, *(f"    {_escaped(each)}" for each in lines)])


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def set_up(form: str) -> None:
    """Log the server's messages and uvicorn's warnings to stderr in the form ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name, level in (("hpo.service", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
