import io
import json
import os
import random
import zlib
from pathlib import Path

import pytest

from tests.trainers.staging_nodes import CountingOpener, stage_on
from trainers.errors import DataError
from trainers.staging import checksum, exchange, local_folder, stage
from trainers.staging.faults import StagingFaults
from trainers.staging.plan import SharedFile, balanced_readers, list_shared_files
from trainers.staging.reading import ReadingTask, SharedFileReader

pytestmark = pytest.mark.processes

NAMES = [f"data-{number:02}.h5" for number in range(10)]


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Ten shards of 0 to 90 kB, in two folders, moved in blocks and chunks that cut them at odd places."""
    monkeypatch.setattr(exchange, "CHUNK_BYTES", 7001)
    monkeypatch.setattr(checksum, "BLOCK_BYTES", 5003)
    folder = tmp_path / "shared"
    (folder / "more").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        at = folder / "more" / name if number % 3 == 0 else folder / name
        at.write_bytes(random.Random(number).randbytes(number * 10_000))
    return folder


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".staging" not in path.parts
    }


def manifest(folder):
    return [
        json.loads(line)
        for line in (folder / ".staging" / "manifest.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_every_node_gets_every_file_and_each_is_read_once(shared, tmp_path, nodes):
    openers = [CountingOpener() for _ in range(nodes)]
    results = stage_on(nodes, shared, tmp_path, open_shared=openers, threads=2)
    for node, result in enumerate(results):
        assert content(tmp_path / str(node)) == content(shared)
        assert (result.files, result.files_written, result.bytes_written) == (10, 10, 450_000)
        assert (result.shared_reads, result.shared_bytes_read) == (10, 450_000)
        assert result.files_read == len(openers[node].opened)
    assert sorted(name for opener in openers for name in opener.opened) == NAMES
    assert all(result.bytes_read > 0.9 * 450_000 / nodes for result in results)


def test_the_manifest_holds_checksums_and_throughput(shared, tmp_path):
    result = stage(shared, tmp_path / "local")
    source, *lines, last = manifest(tmp_path / "local")
    assert source == {"source": {"shared": str(shared), "pattern": "*"}}
    assert {line["file"]: line["crc32"] for line in lines} == {
        name: f"{zlib.crc32(data):08x}" for name, data in content(shared).items()
    }
    assert last["staging"] == result.to_dict()
    assert last["staging"]["read_megabytes_per_second"] == pytest.approx(0.45 / result.seconds)


def test_partition_gives_each_node_an_equal_share_and_sends_nothing(shared, tmp_path, monkeypatch):
    def no_stream(*_):
        raise AssertionError("nothing has to travel")

    monkeypatch.setattr(exchange, "_broadcast", no_stream)
    results = stage_on(3, shared, tmp_path / "a", mode="partition", seed=1)
    shares = [content(tmp_path / "a" / str(node)) for node in range(3)]
    assert sorted(result.files for result in results) == [3, 3, 4]
    assert {name: data for share in shares for name, data in share.items()} == content(shared)
    assert sum(map(len, shares)) == 10
    stage_on(3, shared, tmp_path / "b", mode="partition", seed=2)
    assert any(
        content(tmp_path / "b" / str(node)).keys() != shares[node].keys() for node in range(3)
    )


def test_a_share_can_be_filled_up_from_the_other_nodes(shared, tmp_path):
    openers = [CountingOpener() for _ in range(3)]
    results = stage_on(3, shared, tmp_path, mode="partition", files_per_node=7, open_shared=openers)
    everything = content(shared)
    for node, result in enumerate(results):
        share = content(tmp_path / str(node))
        assert result.files == len(share) == 7 and share.items() <= everything.items()
    assert sorted(name for opener in openers for name in opener.opened) == NAMES
    first, second, third = (content(tmp_path / str(node)).keys() for node in range(3))
    assert not first == second == third


def test_a_share_smaller_than_the_folder_reads_only_what_is_kept(shared, tmp_path):
    results = stage_on(3, shared, tmp_path, mode="partition", files_per_node=2)
    assert [result.files for result in results] == [2, 2, 2] and results[0].shared_reads == 6


def test_a_second_staging_reads_nothing(shared, tmp_path):
    stage_on(2, shared, tmp_path)
    openers = [CountingOpener() for _ in range(2)]
    results = stage_on(2, shared, tmp_path, open_shared=openers)
    assert [(result.files, result.files_written, result.shared_reads) for result in results] == [
        (10, 0, 0)
    ] * 2
    assert not openers[0].opened and not openers[1].opened
    assert [
        len([line for line in manifest(tmp_path / str(node)) if "staging" in line])
        for node in (0, 1)
    ] == [2, 2]


class Interrupted(io.RawIOBase):
    """Fails after its first block."""

    def __init__(self):
        self.blocks = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        self.blocks += 1
        if self.blocks > 1:
            raise OSError(5, "Input/output error")
        return len(buffer)


class FailsAt(CountingOpener):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def __call__(self, path):
        return Interrupted() if path.name == self.name else super().__call__(path)


def test_an_interrupted_staging_goes_on_and_names_the_file_on_every_node(shared, tmp_path):
    errors = stage_on(2, shared, tmp_path, open_shared=FailsAt(NAMES[8]), threads=1)
    messages = {str(error) for error in errors}
    assert {type(error) for error in errors} == {DataError} and len(messages) == 1
    (message,) = messages
    assert (
        f"{shared / NAMES[8]} cannot be read: Input/output error" in message and "of 2: " in message
    )
    before = [content(tmp_path / str(node)) for node in range(2)]
    assert all(
        share.items() <= content(shared).items() and NAMES[8] not in share for share in before
    )
    assert sum(map(len, before)) > 0
    assert not list(tmp_path.rglob("*.part"))

    openers = [CountingOpener(), CountingOpener()]
    results = stage_on(2, shared, tmp_path, open_shared=openers)
    assert [content(tmp_path / str(node)) for node in range(2)] == [content(shared)] * 2
    assert [result.files_written for result in results] == [10 - len(share) for share in before]
    read = openers[0].opened + openers[1].opened
    assert len(read) == len(set(read)) < 10


@pytest.mark.parametrize("damage", ["flipped", "truncated", "deleted", "newer"])
def test_a_damaged_local_file_is_fetched_again(shared, tmp_path, damage):
    stage_on(2, shared, tmp_path)
    at = tmp_path / "1" / NAMES[4]
    if damage == "flipped":
        data = bytearray(at.read_bytes())
        data[17_000] ^= 1
        at.write_bytes(data)
    elif damage == "truncated":
        os.truncate(at, 39_999)
    elif damage == "deleted":
        at.unlink()
    else:
        (shared / NAMES[4]).write_bytes(b"rewritten")
    results = stage_on(2, shared, tmp_path)
    assert content(tmp_path / "0") == content(tmp_path / "1") == content(shared)
    assert [result.files_written for result in results] == ([1, 1] if damage == "newer" else [0, 1])
    # the reader of the file sends the whole copy that it still has
    assert results[0].shared_reads <= 1


def test_a_torn_manifest_line_costs_that_file_only(shared, tmp_path):
    stage(shared, tmp_path / "local")
    at = tmp_path / "local" / ".staging" / "manifest.jsonl"
    lines = at.read_text().splitlines()[:-1]  # as if killed within the line of the last file
    torn = json.loads(lines[-1])["file"]
    at.write_text("\n".join(lines)[:-20])
    opener = CountingOpener()
    stage(shared, tmp_path / "local", open_shared=opener)
    assert opener.opened == [Path(torn).name]
    assert content(tmp_path / "local") == content(shared)


def test_what_the_node_no_longer_wants_is_deleted_and_nothing_else(shared, tmp_path):
    stage(shared, tmp_path / "local")
    (tmp_path / "local" / "notes.txt").write_text("mine")
    stage(shared, tmp_path / "local", mode="partition", files_per_node=4)
    assert len(content(tmp_path / "local")) == 5 and "notes.txt" in content(tmp_path / "local")


class ShortFile(CountingOpener):
    """The file shrinks between the listing and the reading."""

    def __call__(self, path):
        if path.name == NAMES[5]:
            os.truncate(path, 12_345)
        return super().__call__(path)


class Vanishing(CountingOpener):
    def __call__(self, path):
        if path.name == NAMES[5]:
            path.unlink()
        return super().__call__(path)


@pytest.mark.parametrize(
    ("opener", "message"),
    [
        (ShortFile(), "was listed with 50000 bytes, but 12345 bytes were read"),
        (Vanishing(), "vanished after it was listed"),
    ],
)
def test_a_file_that_changes_while_it_is_staged_is_named(shared, tmp_path, opener, message):
    errors = stage_on(3, shared, tmp_path, open_shared=opener)
    assert all(
        isinstance(error, DataError) and message in str(error) and NAMES[5] in str(error)
        for error in errors
    )
    assert not any((tmp_path / str(node) / NAMES[5]).exists() for node in range(3))


def test_damage_on_the_way_is_found(shared, tmp_path, monkeypatch):
    broadcast = exchange._broadcast

    def damaged(communicator, node, count, reader):
        chunk = broadcast(communicator, node, count, reader)
        if node == 0 and communicator.rank == 1:
            chunk[100] ^= 1
        return chunk

    monkeypatch.setattr(exchange, "_broadcast", damaged)
    errors = stage_on(2, shared, tmp_path)
    assert all(
        "node 1 of 2" in str(error) and "differs from the shared file after the copy" in str(error)
        for error in errors
    )


def test_a_full_disk_names_the_file_and_the_node(shared, tmp_path, monkeypatch):
    write = local_folder.LocalCopy.write

    def full(copy, block):
        if copy.file.name == NAMES[8] and copy.local.folder.name == "1":
            raise local_folder.write_fault(
                copy.local.folder / copy.file.name, OSError(28, "No space left on device")
            )
        write(copy, block)

    monkeypatch.setattr(local_folder.LocalCopy, "write", full)
    errors = stage_on(3, shared, tmp_path)
    assert all(
        "node 1 of 3: the disk is full while" in str(error) and NAMES[8] in str(error)
        for error in errors
    )


def test_too_little_space_is_said_before_anything_is_read(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(
        local_folder.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100_000})
    )
    opener = CountingOpener()
    with pytest.raises(DataError, match=r"needs 0\.5 MB more, but 0\.1 MB are free"):
        stage(shared, tmp_path / "local", open_shared=opener)
    assert not opener.opened


def test_two_stagings_of_one_folder_do_not_mix(shared, tmp_path):
    with (
        local_folder.local_folder(tmp_path / "local", {"shared": str(shared), "pattern": "*"}),
        pytest.raises(DataError, match="another staging process is working in"),
    ):
        stage(shared, tmp_path / "local")
    stage(shared, tmp_path / "local")
    with pytest.raises(DataError, match=r"holds files staged from .* stage into another folder"):
        stage(shared / "more", tmp_path / "local")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "al"}, "no staging mode 'al'; did you mean 'all'"),
        ({"files_per_node": 2}, "files_per_node needs the mode 'partition'"),
        (
            {"mode": "partition", "files_per_node": 11},
            r"files_per_node must lie in \[1, 10\].*got 11",
        ),
        ({"threads": 0}, "threads must be at least 1"),
        ({"pattern": "*.tfrecord"}, r"no file that matches '\*.tfrecord'"),
    ],
)
def test_wrong_options_are_refused(shared, tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        stage(shared, tmp_path / "local", **options)


def test_folders_that_cannot_serve_are_refused(shared, tmp_path):
    with pytest.raises(DataError, match="is not a folder that this node can read"):
        stage(tmp_path / "absent", tmp_path / "local")
    with pytest.raises(DataError, match="must lie outside the shared one"):
        stage(shared, shared / "local")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to the local folder"):
        stage(shared, tmp_path / "file" / "local")
    errors = stage_on(12, shared, tmp_path, mode="partition")
    assert all(
        "needs a file for each node, but got 10 files and 12 nodes" in str(error)
        for error in errors
    )


def test_readers_are_balanced_by_bytes():
    generator = random.Random(0)
    files = [SharedFile(str(number), generator.randrange(1000, 2000), 0) for number in range(200)]
    reader = balanced_readers(files, 7)
    loads = [
        sum(file.bytes for file, at in zip(files, reader, strict=True) if at == node)
        for node in range(7)
    ]
    assert max(loads) - min(loads) <= 2000 and sum(loads) == sum(file.bytes for file in files)


def test_no_more_is_read_ahead_than_can_soon_be_sent(shared, tmp_path):
    opener, faults = CountingOpener(), StagingFaults()
    files = [file for file in list_shared_files(shared, "*") if file.bytes]
    with local_folder.local_folder(tmp_path / "local", {}) as folder:
        reader = SharedFileReader(shared, folder, faults, 2, opener)
        reader.start([ReadingTask(file, from_shared=True, keep=False, send=True) for file in files])
        for number, file in enumerate(files):
            content, digits = reader.take(file.bytes), reader.take(checksum.CHECKSUM_BYTES)
            assert content == (shared / file.name).read_bytes() and int.from_bytes(
                digits, "big"
            ) == zlib.crc32(content)
            # two threads read two files, and three at most wait or are read before the one that is taken is over
            assert len(opener.opened) <= number + 4
        reader.wait()
    assert len(opener.opened) == len(files) and faults.error is None
