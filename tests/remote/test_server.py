"""Who may use a server, how much, and what happens when one side is gone."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from weft import Mesh, P, WeftError
from weft.cli.commands.serve_devices import token_in
from weft.remote import wire
from weft.remote.client import connect
from weft.remote.limits import ServerLimits, parse_limits
from weft.remote.server import DeviceServer, ServerOptions, is_loopback

DATA = Path(__file__).parent / "data"
ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.add %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}"""


def test_a_wrong_token_is_refused(serving):
    server, address = serving(token="right-token")
    for token in (None, "", "wrong", "right-token-and-more", "right-toke"):
        with pytest.raises(WeftError, match="the token is missing or wrong"):
            connect(address, token=token)
    assert not server.sessions
    with connect(address, token="right-token") as client:
        assert float(client.put(3.0)) == 3.0
        assert float(np.asarray(client.put(np.ones(1 << 18)))[7]) == 1.0  # both kinds of transfer


@pytest.mark.parametrize(
    ("address", "token", "message"),
    [
        ("localhost", None, "'localhost' is not an address"),
        ("localhost:99999", None, "'localhost:99999' is not an address"),
        ("localhost:8470", "right-token\n", "the token has characters that no token has"),
    ],
)
def test_addresses_and_tokens_that_cannot_be(address: str, token: str | None, message: str):
    with pytest.raises(WeftError, match=message):
        connect(address, token=token, timeout=5)


def test_arrays_that_were_dropped_make_room_for_the_next_one(serving):
    _, address = serving(limits=ServerLimits(arrays=3))
    with connect(address) as client:
        arrays = [client.put(np.ones(4, np.float32)) for _ in range(3)]
        for _ in range(3):
            arrays.pop()
            arrays.append(client.put(np.ones(4, np.float32)))
            assert float(np.asarray(arrays[-1]).sum()) == 4


def test_a_transfer_needs_the_token_and_a_session(serving):
    import grpc

    _, address = serving(token="right-token")
    asked = wire.encoded("download", session="0" * 32, array=1)
    with grpc.insecure_channel(address) as channel:
        for method in (wire.SESSION, wire.UPLOAD, wire.DOWNLOAD):
            with pytest.raises(grpc.RpcError) as caught:
                [*channel.stream_stream(method)(iter([asked]))]
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        bearer = (("authorization", "Bearer right-token"),)
        (answer,) = channel.unary_stream(wire.DOWNLOAD)(asked, metadata=bearer)
        assert "no such session" in wire.decoded(answer, "failed")["message"]


def test_tls(serving):
    certificate, key = ((DATA / name).read_bytes() for name in ("localhost.pem", "localhost.key"))
    _, address = serving(token="right-token", certificate=certificate, key=key)
    with connect(address, token="right-token", tls=DATA / "localhost.pem") as client:
        assert float(client.put(3.0)) == 3.0
    for tls in (False, DATA / "other.pem"):
        with pytest.raises(WeftError, match="no connection"):
            connect(address, token="right-token", tls=tls, timeout=5)
    with pytest.raises(WeftError, match="cannot read"):
        connect(address, tls="no_such_file.pem")


def test_other_machines_need_a_token():
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(WeftError, match="no token is set"):
            DeviceServer(ServerOptions(host))
    with pytest.warns(RuntimeWarning, match="without TLS"):
        DeviceServer(ServerOptions("0.0.0.0", token="right-token"))
    with pytest.raises(WeftError, match="a certificate and its key"):
        DeviceServer(ServerOptions(certificate=b"x"))
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))


def test_only_this_machine_by_default(serving):
    _, address = serving()
    port = int(address.rpartition(":")[2])
    for family, host in ((socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as probe:
                probe.settimeout(1)
                assert probe.connect_ex((host, port)) != 0
        except OSError:
            pass  # no IPv6 here


def test_a_port_is_not_shared(serving):
    _, address = serving()
    taken = int(address.rpartition(":")[2])
    with pytest.raises(WeftError, match="cannot listen"):
        DeviceServer(ServerOptions(port=taken)).start()


def test_what_one_client_may_hold(serving):
    server, address = serving(ServerLimits(bytes=1 << 20, arrays=8, programs=2, devices=4))
    with connect(address) as client:
        held = [client.put(np.ones(70_000)), client.put(np.ones(60, "f"))]
        for too_much in (np.ones(70_000), np.ones(2 << 20, np.uint8)):
            with pytest.raises(WeftError, match="this client holds 547 KiB of 1 MiB"):
                client.put(too_much)
        double = client.compile(lambda x: x * 2)
        with pytest.raises(WeftError, match="do not fit: this client holds"):
            np.asarray(double(held[0]))
        held[0].delete()
        client.put(np.ones(100_000)).delete()
        with pytest.raises(WeftError, match="devices of the mesh: 8, but the server's limit"):
            np.asarray(client.put(np.ones(8), P("x"), Mesh(x=8)))
        with pytest.raises(WeftError, match="limit devices is 4"):
            client.compile(lambda x: x, np.ones(8), mesh=Mesh(x=8))
        with pytest.raises(WeftError, match="memory of a run"):
            client.compile(lambda x: x[:, None] * x[None, :], np.ones(1000))
        many = [client.put(np.float32(n)) for n in range(9)]
        with pytest.raises(WeftError, match="arrays of this client"):
            np.asarray(many[-1])
        (session,) = server.sessions.values()
        assert len(session.arrays) <= 8


def test_limits_of_programs_and_clients(serving):
    _, address = serving(ServerLimits(programs=1, program_bytes=1000, clients=1))
    with connect(address) as client:
        kept = client.compile(ADD)
        with pytest.raises(WeftError, match="programs: 2, but the server's limit programs is 1"):
            client.compile(ADD)
        with pytest.raises(WeftError, match="limit program_bytes is"):
            client.send_program("module", b" " * 2000, {})
        with pytest.raises(WeftError, match="limit clients is 1"):
            connect(address)
        (made,) = kept(np.ones(4, "f"))
        np.testing.assert_array_equal(made, np.full(4, 2))


def test_clients_do_not_see_each_other(serving):
    _, address = serving()
    with connect(address) as one, connect(address) as other:
        mine = one.put(np.ones(3))
        forged = other.put(np.zeros(3))
        np.asarray(mine), np.asarray(forged)
        forged.held, forged._elements, forged.handle = None, None, mine.handle + 10
        with pytest.raises(WeftError, match="has no array"):
            np.asarray(forged)
        np.testing.assert_array_equal(other.compile(lambda x: x + 1)(mine), np.full(3, 2.0))


def test_after_a_disconnect_everything_raises_and_what_is_here_stays(serving):
    server, address = serving()
    client = connect(address)
    double = client.compile(lambda x: x * 2, np.ones(3))
    known, unknown = client.put(np.ones(3)), client.put(np.ones(3))
    large = client.put(np.ones(100_000))
    np.asarray(known), unknown.block_until_ready()
    server.stop()
    calls = [
        lambda: np.asarray(unknown),
        lambda: np.asarray(large),
        lambda: client.put(np.ones(3)),
        lambda: client.put(np.ones(100_000)),
        lambda: client.put(known, P("x"), Mesh(x=1)),
        lambda: double(known),
        lambda: client.compile(ADD),
        lambda: client.devices(),
    ]
    for call in calls:
        with pytest.raises(WeftError, match="there is no connection to"):
            call()
    np.testing.assert_array_equal(known, np.ones(3))
    assert "disconnected" in repr(client)
    client.close()
    client.close()
    with pytest.raises(WeftError, match="there is no connection to"):
        double(known)


def test_what_waits_is_woken_by_a_disconnect(serving):
    server, address = serving()
    client = connect(address)
    power = client.compile(lambda x: x @ x * 1e-3, np.ones((700, 700), "f"))
    made = client.put(np.ones((700, 700), "f"))
    for _ in range(60):
        made = power(made)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            np.asarray(made)
        except WeftError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    server.stop()
    waiting.join(30)
    assert not waiting.is_alive()
    assert caught and "there is no connection to" in str(caught[0])


def test_closing_and_connecting_again(serving):
    _, address = serving()
    with connect(address) as client:
        made = client.put(np.ones(3))
    with pytest.raises(WeftError, match="was closed"):
        np.asarray(made)
    with connect(address) as client:
        assert float(client.put(1.0)) == 1.0


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(WeftError, match="there is no connection to"):
            connect(f"127.0.0.1:{taken.getsockname()[1]}", timeout=5)
    for wrong in ("localhost", "localhost:http", ":80", ""):
        with pytest.raises(WeftError, match="is not an address"):
            connect(wrong)


def test_a_server_that_stands_still_is_found():
    """A stopped process keeps its sockets open: only unanswered pings tell."""
    import signal
    import subprocess
    import sys

    line = [sys.executable, "-m", "weft", "serve-devices", "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            client = connect(address, timeout=3)
            made = client.put(np.ones(3)).block_until_ready()
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # its threads stop one after another
            with pytest.raises(WeftError, match="there is no connection to"):
                np.asarray(made)
        finally:
            process.kill()


def test_versions_are_negotiated(serving):
    assert wire.agreed_version(1, 1, "") == 1
    assert wire.agreed_version(0, 99, "") == wire.NEWEST
    for oldest, newest in ((99, 100), (0, 0)):
        with pytest.raises(WeftError, match="versions of the protocol|speaks versions"):
            wire.agreed_version(oldest, newest, "weft 9")
    import grpc

    _, address = serving()
    hello = wire.encoded("hello", oldest=99, newest=99, weft="weft 9")
    with grpc.insecure_channel(address) as channel:
        (answer,) = channel.stream_stream(wire.SESSION)(iter([hello]))
    assert "speaks versions 99 to 99" in wire.decoded(answer, "failed")["message"]


def test_limits_of_a_command_line():
    limits = parse_limits("bytes=4G, clients=2,program_bytes=10MiB,arrays=1K")
    assert (limits.bytes, limits.clients) == (4 << 30, 2)
    assert (limits.program_bytes, limits.arrays) == (10 << 20, 1024)
    for wrong in ("", "bytes", "bytes=", "bytes=-1", "bytes=0", "speed=3", "bytes=4X"):
        with pytest.raises(WeftError, match="is not a limit"):
            parse_limits(wrong)


def test_a_token_file_is_private(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    assert token_in(str(path)) == "0123456789abcdef"
    if os.name == "posix":
        path.chmod(0o644)
        with pytest.raises(WeftError, match="other users can read"):
            token_in(str(path))
    path.chmod(0o600)
    for wrong in ("", "short", "two\nlines of it", "umläut-token"):
        path.write_text(wrong)
        with pytest.raises(WeftError, match="has no token"):
            token_in(str(path))
    with pytest.raises(WeftError, match="cannot read"):
        token_in(str(tmp_path / "absent"))
