"""Reads runs from a TensorBoard folder: scalars and hyperparameters of its event files, without TensorFlow.

An event file is a sequence of records (TFRecord: length, checksum of the length, content, checksum of the content),
each an ``Event`` protocol buffer message (tensorboard/compat/proto/event.proto). Hyperparameters come from the HParams
plugin (``SummaryWriter.add_hparams``), whose data PyTorch and tensorboardX write into a folder below the run's own, or
from a file ``hparams.yaml`` beside the event files, as written by Lightning.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpo.errors import EvidenceError
from hpo.past_runs.past_run import PastRun, Reading

_DOUBLE, _FLOAT = 2, 1
"""``DT_DOUBLE`` and ``DT_FLOAT`` of tensorboard/compat/proto/types.proto."""

_SESSION_STARTED = "_hparams_/session_start_info"
_HPARAMS_TAGS = "_hparams_/"
_HPARAMS_METRICS = "hparam/"
"""The beginning of the tags under which ``add_hparams`` conventionally writes the metrics of a run."""


class _HyperparameterLoader(yaml.SafeLoader):
    """Reads a tuple as a list, and any other Python object in a file ``hparams.yaml`` as None; it runs no code."""


def _tuple_as_list(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


def _object_as_none(_loader: yaml.SafeLoader, _tag: str, _node: yaml.Node) -> None:
    return None


_HyperparameterLoader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple_as_list)
_HyperparameterLoader.add_multi_constructor("tag:yaml.org,2002:python/", _object_as_none)


def read_tensorboard(root: Path) -> list[PastRun]:
    """Return one run for every folder below ``root`` with event files; raise :class:`EvidenceError` if there is none.

    A folder that ``add_hparams`` wrote belongs to the run of the folder above it, if that has no hyperparameters; a
    folder with curves or its own ``hparams.yaml`` is a run.
    """
    if not root.is_dir():
        raise EvidenceError(
            f"there is no folder {root}; give the log directory of TensorBoard (its --logdir)"
        )
    folders = sorted({path.parent for path in root.rglob("*tfevents*") if path.is_file()})
    if not folders:
        raise EvidenceError(f"{root} has no TensorBoard event files (*tfevents*)")
    logs = {folder: _read_folder(folder) for folder in folders}
    for folder in folders:
        above = logs.get(folder.parent)
        if above is not None and logs[folder].are_hyperparameters_of(above):
            above.values |= {**logs[folder].last, **logs[folder].values}
            del logs[folder]
    return [
        PastRun(
            label=f"tensorboard {folder.relative_to(root.parent) if folder != root else root.name}",
            values={**log.last, **log.values},
            curves=log.curves,
            seconds=log.seconds,
        )
        for folder, log in logs.items()
    ]


@dataclass
class _FolderLog:
    """The combined content of the event files in one folder."""

    values: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, dict[int, tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    times: list[float] = field(default_factory=list)
    has_file: bool = False
    sessions: int = 0
    """How often hyperparameters were written; ``add_hparams`` writes them with each value of its metrics."""

    def are_hyperparameters_of(self, above: _FolderLog) -> bool:
        """Return whether ``add_hparams`` of the run in the folder above wrote this folder."""
        if above.values or not self.sessions or self.has_file:
            return False
        several = [
            len(points)
            for tag, points in self.scalars.items()
            if len(points) > 1 and not tag.startswith(_HPARAMS_METRICS)
        ]
        return not several or (max(several) <= self.sessions and above.has_curves)

    @property
    def has_curves(self) -> bool:
        return any(len(points) > 1 for points in self.scalars.values())

    @property
    def curves(self) -> dict[str, list[Reading]]:
        first = min(self.times, default=0.0)
        return {
            tag: [
                Reading(step, value, time - first) for step, (value, time) in sorted(points.items())
            ]
            for tag, points in self.scalars.items()
        }

    @property
    def last(self) -> dict[str, float]:
        return {tag: points[max(points)][0] for tag, points in self.scalars.items()}

    @property
    def seconds(self) -> float | None:
        return max(self.times) - min(self.times) if len(self.times) > 1 else None


def _read_folder(folder: Path) -> _FolderLog:
    log = _FolderLog()
    yaml_file = folder / "hparams.yaml"
    if yaml_file.is_file():
        try:
            said = yaml.load(yaml_file.read_text("utf-8"), _HyperparameterLoader)
        except (ValueError, yaml.YAMLError) as error:
            raise EvidenceError(f"cannot read {yaml_file}: {error}") from error
        log.values |= said if isinstance(said, dict) else {}
        log.has_file = True
    # a resumed run continues in another file; repeated steps replace the earlier values
    for path in sorted(path for path in folder.iterdir() if "tfevents" in path.name):
        for content in _records(path):
            try:
                _take_event(log, content)
            except (struct.error, IndexError, UnicodeDecodeError) as error:
                raise EvidenceError(f"{path} is not a TensorBoard event file: {error}") from error
    return log


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file in order, stopping at a record that a crash truncated."""
    content, place = path.read_bytes(), 0
    while place + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        (checksum,) = struct.unpack_from("<I", content, place + 8)
        if checksum != _masked_crc(content[place : place + 8]):
            raise EvidenceError(
                f"{path} is not a TensorBoard event file, or is damaged at byte {place}"
            )
        if place + 16 + length > len(content):
            return
        yield content[place + 12 : place + 12 + length]
        place += 16 + length


def _take_event(log: _FolderLog, content: bytes) -> None:
    event = _fields(content)
    time = _as_double(event.get(1, [b""])[-1])
    step = _signed(event.get(2, [0])[-1])
    for summary in event.get(5, []):
        for value in _fields(summary).get(1, []):
            parts = _fields(value)
            tag = bytes(parts.get(1, [b""])[-1]).decode()
            if tag.startswith(_HPARAMS_TAGS):
                if tag == _SESSION_STARTED:
                    log.values |= _hyperparameters(parts)
                    log.sessions += 1
                continue
            scalar = _scalar(parts)
            if scalar is not None:
                log.scalars[tag][step] = scalar, time
                log.times.append(time)


def _scalar(value: dict[int, list[Any]]) -> float | None:
    """Return ``simple_value`` (2), or a ``tensor`` (8) of one element; None for images, histograms and text."""
    if 2 in value:
        return float(struct.unpack("<f", value[2][-1])[0])
    if 8 not in value:
        return None
    tensor = _fields(value[8][-1])
    kind = tensor.get(1, [0])[-1]
    if kind not in (_FLOAT, _DOUBLE):
        return None
    form = "<f" if kind == _FLOAT else "<d"
    content = b"".join(tensor.get(4, [])) or b"".join(tensor.get(5 if kind == _FLOAT else 6, []))
    if len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _hyperparameters(value: dict[int, list[Any]]) -> dict[str, Any]:
    """Read ``metadata`` (9) → ``plugin_data`` (1) → ``content`` (2): HParamsPluginData, whose ``session_start_info``
    (3) has a map ``hparams`` (1) of names (1) to google.protobuf.Value (2): number (2), string (3), bool (4).
    """
    found: dict[str, Any] = {}
    for metadata in value.get(9, []):
        for plugin in _fields(metadata).get(1, []):
            for content in _fields(plugin).get(2, []):
                for session in _fields(content).get(3, []):
                    for entry in _fields(session).get(1, []):
                        parts = _fields(entry)
                        name = bytes(parts[1][-1]).decode()
                        found[name] = _plain(_fields(parts.get(2, [b""])[-1]))
    return found


def _plain(value: dict[int, list[Any]]) -> Any:
    if 2 in value:
        return _as_double(value[2][-1])
    if 3 in value:
        return bytes(value[3][-1]).decode()
    if 4 in value:
        return bool(value[4][-1])
    return None


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return a message's fields by number: integers for varints, bytes otherwise (protobuf.dev, "Encoding")."""
    found: dict[int, list[Any]] = defaultdict(list)
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        value: Any
        if kind == 0:
            value, place = _varint(message, place)
        elif kind == 1:
            value, place = message[place : place + 8], place + 8
        elif kind == 2:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        elif kind == 5:
            value, place = message[place : place + 4], place + 4
        else:
            raise IndexError(f"a field of unknown kind {kind}")
        if place > len(message):
            raise IndexError("a field that extends beyond its message")
        found[number].append(value)
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _as_double(content: bytes) -> float:
    return float(struct.unpack("<d", content)[0]) if content else 0.0


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc_table()


def _masked_crc(content: bytes) -> int:
    """Return the masked CRC-32C of TFRecord (tensorflow.org, "TFRecord and tf.train.Example")."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
