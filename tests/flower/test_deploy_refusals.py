"""A deployment's address and certificates are checked where the user looks, before Flower's
programs start."""

import contextlib
import dataclasses
import datetime
import socket
import ssl
import threading

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedax.core import FedaxError
from fedax.flower.deploy import keys
from fedax.flower.deploy.processes import (
    check_address,
    connection_failure,
    host_of,
    last_line,
    superlink_command,
)
from fedax.flower.deploy.settings import Deployment
from fedax.flower.deploy.trial import run_client, run_server


def test_an_address_in_use_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        deployment = Deployment(tmp_path, port=other.getsockname()[1])
        keys.write_certificates(tmp_path / "keys", "127.0.0.1")
        message = rf"127.0.0.1:{deployment.port} is in use by another program.*another port in"
        with pytest.raises(FedaxError, match=message), run_server(deployment, lambda line: None):
            pass
    check_address(deployment)  # free again
    check_address(dataclasses.replace(deployment, host="not-a-host-of-this-machine.invalid"))


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("2001:db8::7", "::"),
        ("10.0.0.7", "0.0.0.0"),
        ("fl.example.org", "0.0.0.0"),
    ],
)
def test_the_server_binds_an_address_of_the_hosts_kind(host, bound, tmp_path):
    """In the form in which Flower takes it, which puts brackets around it itself."""
    deployment = Deployment(tmp_path, host=host)
    command = superlink_command(deployment)
    assert command[command.index("--host") + 1] == host_of(deployment) == bound


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_a_server_on_ipv6_is_reached_and_its_address_checked(tmp_path):
    keys.write_certificates(tmp_path / "keys", "2001:db8::7")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", 0))
        port = listener.getsockname()[1]
        deployment = Deployment(tmp_path, host="::1", port=port)
        check_address(dataclasses.replace(deployment, host="127.0.0.1"))
        listener.listen()
        assert host_of(deployment) == "::1"
        with pytest.raises(FedaxError, match=rf"\[::1\]:{port} is in use by another program"):
            check_address(deployment)

        def answer():
            with contextlib.suppress(OSError):
                plain, _ = listener.accept()
                with context.wrap_socket(plain, server_side=True):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        # of a server on `::`, which Flower's own programs reach by the loopback's address
        assert connection_failure(deployment) is None
        thread.join()


@pytest.mark.parametrize("days", [-2, 400])
def test_certificates_that_are_not_valid_are_named(tmp_path, monkeypatch, days):
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    deployment = Deployment(tmp_path, port=1)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "_now", lambda: then)
        keys.write_certificates(tmp_path / "keys", "127.0.0.1")
    for begin in (
        lambda: run_server(deployment, print).__enter__(),
        lambda: run_client(deployment, 0, None, print),
    ):
        with pytest.raises(
            FedaxError,
            match=r"ca.crt is valid from \d{4}-\d\d-\d\d to "
            r"\d{4}-\d\d-\d\d, and today is",
        ):
            begin()


def test_the_line_of_a_log_that_says_why(tmp_path):
    log = tmp_path / "client-3.log"
    assert "is empty" in last_line(log)
    log.write_text(
        "INFO starting\n[Errno 98] Address already in use\x1b[2J\nApplication shutdown complete.\n"
    )
    assert last_line(log).endswith(r"says '[Errno 98] Address already in use\\x1b[2J'")
    log.write_text("INFO starting\nFinished server process\n")
    assert last_line(log).endswith("ends with 'Finished server process'")
    log.write_text(
        "[code: 2004] Failed to activate SuperNode.\nINFO:     Finished server process [1]\n"
    )
    assert (
        "says '[code: 2004] Failed to activate SuperNode.'. The server does not know the key of "
        "this client-3. That is harmless right after a restart" in last_line(log)
    )
    assert "copy keys/client-3.pub to the server's folder" in last_line(log)
    log.write_text(
        "INFO: SuperNode terminated gracefully.\nINFO:     Finished server process [1]\n"
    )
    assert last_line(log).endswith("The server was started again, and takes it back")
