"""What is fetched is the publisher's, whole, or is not there: against a server on this machine."""

import hashlib
import io
import stat
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from commandline import invoke
from data_files import BATCHES, batch_bytes, write, write_batches, write_mnist

from hpcfl.errors import HpcflError, UsageError
from hpcfl.learning import images
from hpcfl.learning.datasets import load
from hpcfl.learning.fetch import DOWNLOADS, Download, fetch


@pytest.fixture
def server(monkeypatch):
    """Serve files in memory, and remember what was asked for."""
    pytest.importorskip("pooch", reason="pooch is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.removeprefix("/mirror/")
            http.asked.append(name)
            if name not in http.files:
                self.send_error(404)
                return
            self.send_response(200)
            if name.endswith("gz") and "gzip" in self.headers["Accept-Encoding"]:
                self.send_header("Content-Encoding", "gzip")  # as some servers do
            self.send_header("Content-Length", str(len(http.files[name])))
            self.end_headers()
            self.wfile.write(http.files[name])

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.files, http.asked = {}, []
    http.url = f"http://127.0.0.1:{http.server_address[1]}/mirror"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


def publish(server, monkeypatch, name, files):
    """Put files on the server, as those of a data set."""
    server.files = files
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    monkeypatch.setitem(DOWNLOADS, name, Download(server.url, digests))


def test_missing_and_damaged_files_are_downloaded_to_where_readers_look(
    server, tmp_path, monkeypatch
):
    write_mnist(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made" / "mnist").iterdir()}
    publish(server, monkeypatch, "mnist", files)
    folder = tmp_path / "new" / "data"

    result = invoke("data", "fetch", "mnist", "--data-dir", folder)

    assert result.exit_code == 0, result.exception
    paths = [folder / "mnist" / name for name in files]
    assert result.stdout == "".join(f"{path}\n" for path in paths)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o644}
    assert len(load("mnist", folder).train_labels) == 20
    paths[2].write_bytes(b"damaged")
    server.asked.clear()
    monkeypatch.setenv("HPCFL_DATA", str(folder))
    fetch("mnist", None, base_url=f"{server.url}/")
    assert server.asked == [paths[2].name]
    assert [path.read_bytes() for path in paths] == list(files.values())


def test_an_archive_is_unpacked(server, tmp_path, monkeypatch):
    batch = batch_bytes(np.zeros((1, 3, 32, 32), np.uint8), [3])
    digests = write_batches(tmp_path / "made", dict.fromkeys(images.CIFAR10_DIGESTS, batch))
    for name, digest in digests.items():
        monkeypatch.setitem(images.CIFAR10_DIGESTS, name, digest)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        file.add(tmp_path / "made" / BATCHES, "cifar-10-batches-py")
    publish(server, monkeypatch, "cifar10", {"cifar-10-python.tar.gz": packed.getvalue()})

    paths = fetch("cifar10", tmp_path)
    paths[0].unlink()
    fetch("cifar10", tmp_path)

    assert sorted(paths) == sorted(tmp_path / BATCHES / name for name in digests)
    assert len(load("cifar10", tmp_path).train_labels) == 5
    assert server.asked == ["cifar-10-python.tar.gz"]  # the second time, it was there


@pytest.mark.parametrize("sent", [b"wrong", None])
def test_what_is_not_the_publishers_file_replaces_nothing(sent, server, tmp_path, monkeypatch):
    publish(server, monkeypatch, "adult", {"adult.data": b"all of it"})
    server.files = {} if sent is None else {"adult.data": sent}
    path = tmp_path / "adult" / "adult.data"
    write(path, b"old")

    with pytest.raises(
        HpcflError, match=r"adult\.data (is not the publisher's|cannot be downloaded)"
    ):
        fetch("adult", tmp_path)

    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_what_cannot_be_fetched_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    for name, expected in (
        ("femnist", r"make it with LEAF.*DIR/femnist/"),
        ("digits", "no data set to download called 'digits'"),
    ):
        with pytest.raises(UsageError, match=expected):
            fetch(name, None)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UsageError, match=r"pip install 'hpcfl\[train\]'"):
        fetch("mnist", tmp_path)
