"""What is fetched is the publisher's, whole, or is not there: against a server on this machine."""

import gzip
import hashlib
import io
import re
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from click.testing import CliRunner
from data_files import batch_bytes, only_text, real_data, write, write_adult, write_mnist

from hpcfl.cli.data import command
from hpcfl.errors import HpcflError, UsageError
from hpcfl.learning import cifar10
from hpcfl.learning.datasets import load
from hpcfl.learning.fetch import DOWNLOADS, Download, fetch


class Server:
    """An HTTP server with files in memory, which remembers what was asked for."""

    def __init__(self):
        self.files = {}
        self.asked = []
        self.announce_more = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/mirror/")
                outer.asked.append(name)
                content = outer.files.get(name)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                if name.endswith("gz") and "gzip" in self.headers["Accept-Encoding"]:
                    self.send_header("Content-Encoding", "gzip")  # as some servers do
                self.send_header("Content-Length", str(len(content) + outer.announce_more))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/mirror"


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("pooch", reason="pooch is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def digest(content):
    return hashlib.sha256(content).hexdigest()


def table(server, **contents):
    """Put files on the server; return the table of a data set `tiny` of these files."""
    server.files |= contents
    downloads = [
        Download(server.url, file, digest(content), "tiny") for file, content in contents.items()
    ]
    return {"tiny": tuple(downloads)}


def archive(contents):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def archive_table(server, content, members):
    server.files["all.tar.gz"] = content
    return {"tiny": (Download(server.url, "all.tar.gz", digest(content), "tiny/in", members),)}


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Files


def test_files_are_downloaded_to_their_folder(server, tmp_path):
    downloads = table(server, a=b"first", b=b"second" * 100_000)

    paths = fetch("tiny", tmp_path / "new" / "data", downloads=downloads)

    assert paths == [tmp_path / "new" / "data" / "tiny" / name for name in "ab"]
    assert [path.read_bytes() for path in paths] == [b"first", b"second" * 100_000]
    assert everything(tmp_path / "new" / "data") == ["tiny", "tiny/a", "tiny/b"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o644}


def test_packed_files_stay_packed_in_the_environments_folder(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path))
    packed = gzip.compress(b"values")

    (path,) = fetch("tiny", None, downloads=table(server, **{"values.gz": packed}))

    assert path == tmp_path / "tiny" / "values.gz"
    assert path.read_bytes() == packed


def test_only_what_is_missing_or_damaged_is_downloaded(server, tmp_path):
    downloads = table(server, a=b"1", b=b"2", c=b"3")
    fetch("tiny", tmp_path, downloads=downloads)
    (tmp_path / "tiny" / "a").unlink()
    (tmp_path / "tiny" / "c").write_bytes(b"damaged")
    server.asked.clear()

    paths = fetch("tiny", tmp_path, downloads=downloads)

    assert server.asked == ["a", "c"]
    assert [path.read_bytes() for path in paths] == [b"1", b"2", b"3"]


def test_a_mirror_is_asked_instead_of_the_publisher(server, tmp_path):
    server.files["a"] = b"1"
    downloads = {"tiny": (Download("http://publisher.invalid", "a", digest(b"1"), "tiny"),)}

    fetch("tiny", tmp_path, base_url=f"{server.url}/", downloads=downloads)

    assert server.asked == ["a"]


# Nothing wrong is kept


@pytest.mark.parametrize(
    ("sent", "announced", "expected"),
    [
        (b"wrong", 0, "/a sent is not the publisher's a .*--base-url"),
        (b"all of", 3, "/a (cannot be downloaded|sent is not)"),
        (None, 0, r"/a cannot be downloaded \(the server answered 404 "),
    ],
    ids=["another checksum", "cut off", "not there"],
)
def test_what_is_not_the_publishers_file_replaces_nothing(
    sent, announced, expected, server, tmp_path
):
    downloads = table(server, a=b"all of it")
    server.files = {} if sent is None else {"a": sent}
    server.announce_more = announced
    write(tmp_path / "tiny" / "a", b"old")

    with pytest.raises(HpcflError, match=expected) as caught:
        fetch("tiny", tmp_path, downloads=downloads)

    assert "\n" not in str(caught.value)
    assert everything(tmp_path) == ["tiny", "tiny/a"]
    assert (tmp_path / "tiny" / "a").read_bytes() == b"old"


def test_an_unreachable_server_and_what_is_no_url_are_reported(server, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # but nobody listens
        for url, why in (
            (f"http://me:marker@127.0.0.1:{free.getsockname()[1]}", "Connection refused"),
            ("nonsense", "Invalid URL"),
        ):
            with pytest.raises(HpcflError, match=rf"/a cannot be downloaded \({why}") as caught:
                fetch("tiny", tmp_path, url, downloads=table(server, a=b"1"))
            assert "marker" not in str(caught.value)

    assert everything(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_reported(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(HpcflError, match=r"file is a file, and not a folder"):
        fetch("tiny", tmp_path / "file", downloads=table(server, a=b"1"))


# Archives


def test_an_archive_is_unpacked_and_only_its_files_are_kept(server, tmp_path):
    content = archive({"top/a": b"1", "top/b": b"2", "top/readme": b"3"})
    members = {"top/a": digest(b"1"), "top/b": digest(b"2")}
    downloads = archive_table(server, content, members)

    paths = fetch("tiny", tmp_path, downloads=downloads)
    fetch("tiny", tmp_path, downloads=downloads)

    assert everything(tmp_path) == ["tiny", "tiny/in", "tiny/in/a", "tiny/in/b"]
    assert [path.read_bytes() for path in paths] == [b"1", b"2"]
    assert server.asked == ["all.tar.gz"]  # the second time, all was there


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (archive({"top/b": b"1"}), "all.tar.gz cannot be unpacked"),
        (archive({"top/a": b"2"}), "top/a in all.tar.gz is not the publisher's file"),
        (b"no archive", "all.tar.gz cannot be unpacked"),
    ],
    ids=only_text,
)
def test_an_archive_of_something_else_is_not_kept(content, expected, server, tmp_path):
    downloads = archive_table(server, content, {"top/a": digest(b"1")})

    with pytest.raises(HpcflError, match=expected):
        fetch("tiny", tmp_path, downloads=downloads)

    assert everything(tmp_path) == []


def test_an_archive_cannot_write_elsewhere_or_link_to_it(server, tmp_path):
    outside = archive({"../../outside": b"1"})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        member = tarfile.TarInfo("top/a")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(member)
    for content, name in ((outside, "../../outside"), (packed.getvalue(), "top/a")):
        downloads = archive_table(server, content, {name: digest(b"1")})
        with pytest.raises(HpcflError, match=r"cannot be unpacked .*(outside|link)"):
            fetch("tiny", tmp_path / "data", downloads=downloads)

    assert everything(tmp_path) == ["data"]


# The table of the publishers' files


@pytest.mark.parametrize("name", DOWNLOADS)
def test_the_table_has_the_names_and_checksums_of_the_real_files(name):
    data_dir = real_data(name)
    checked = 0
    for download in DOWNLOADS[name]:
        for file, expected in download.targets().items():
            path = data_dir / download.folder / file
            if path.is_file():
                assert digest(path.read_bytes()) == expected
                checked += 1

    assert checked >= 2


def test_fetched_files_are_where_the_readers_look(server, tmp_path, monkeypatch):
    """Tiny files under the publishers' names, fetched by the real table with other checksums."""
    write_mnist(tmp_path / "made")
    write_adult(tmp_path / "made", ["a"], ["b"])
    batch = batch_bytes(np.zeros((1, 3, 32, 32), np.uint8), [3])
    batches = {f"cifar-10-batches-py/{name}": batch for name in cifar10.DIGESTS}
    server.files = {path.name: path.read_bytes() for path in (tmp_path / "made").glob("*/*")}
    server.files["cifar-10-python.tar.gz"] = archive(batches)
    tiny = {
        name: tuple(
            Download(
                server.url,
                entry.file,
                digest(server.files[entry.file]),
                entry.folder,
                dict.fromkeys(entry.members, digest(batch)),
            )
            for entry in entries
        )
        for name, entries in DOWNLOADS.items()
    }
    got = tmp_path / "got"
    for name in tiny:
        fetch(name, got, downloads=tiny)

    assert len(load("mnist", got).train_labels) == 20
    digests = dict.fromkeys(cifar10.DIGESTS, digest(batch))
    assert len(cifar10.read(got, digests).train_labels) == 5
    with pytest.raises(UsageError, match=r"adult\.data cannot be read \(line 1 has 1 fields"):
        load("adult", got)


# The command


def run(*arguments):
    return CliRunner().invoke(command, ["fetch", *map(str, arguments)])


def test_the_command_says_where_the_files_are(server, tmp_path, monkeypatch):
    monkeypatch.setitem(DOWNLOADS, "tiny", table(server, a=b"1", b=b"2")["tiny"])

    result = run("tiny", "--data-dir", tmp_path, "--base-url", server.url)

    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path}/tiny/a\n{tmp_path}/tiny/b\n"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("femnist", "make it with LEAF.*DIR/femnist/train and DIR/femnist/test"),
        ("digits", "digits needs no files"),
        ("synthetic", "synthetic needs no files"),
        ("adult-raw", "is made of adult"),
        ("minst", "there is no data set to download called 'minst'; did you mean 'mnist'"),
        ("mnist", "--data-dir DIR"),
    ],
)
def test_the_command_explains_what_it_cannot_fetch(name, expected, monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)

    error = run(name).exception

    assert isinstance(error, UsageError)
    assert re.search(expected, str(error))


def test_without_pooch_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)

    with pytest.raises(UsageError, match=r"pip install 'hpcfl\[train\]'"):
        fetch("mnist", tmp_path)


def test_only_one_rank_downloads(tmp_path, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")

    result = run("mnist", "--data-dir", tmp_path)

    assert result.exit_code == 0
    assert everything(tmp_path) == []


def test_progress_is_shown_of_all_bytes(server, tmp_path, capsys):
    pytest.importorskip("tqdm")
    fetch("tiny", tmp_path, progress=True, downloads=table(server, a=b"1" * 2_000_000))

    assert "100%" in capsys.readouterr().err


def test_pooch_is_imported_only_to_download():
    code = "import sys, hpcfl.cli.data, hpcfl.learning.fetch; print('pooch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "False\n"
