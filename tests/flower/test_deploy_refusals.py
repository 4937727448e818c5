"""A deployment's address and certificates are checked where the user looks, before Flower's
programs start."""

import dataclasses
import datetime
import socket

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from fedax.core import FedaxError
from fedax.flower.deploy import keys
from fedax.flower.deploy.processes import check_address, last_line
from fedax.flower.deploy.settings import Deployment
from fedax.flower.deploy.trial import run_client, run_server


def test_an_address_in_use_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        deployment = Deployment(tmp_path, port=other.getsockname()[1])
        keys.certificates(tmp_path / "keys", "127.0.0.1")
        message = rf"127.0.0.1:{deployment.port} is in use by another program.*another port in"
        with pytest.raises(FedaxError, match=message), run_server(deployment, lambda line: None):
            pass
    check_address(deployment)  # free again
    check_address(dataclasses.replace(deployment, host="not-a-host-of-this-machine.invalid"))


@pytest.mark.parametrize("days", [-2, 400])
def test_certificates_that_are_not_valid_are_named(tmp_path, monkeypatch, days):
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    deployment = Deployment(tmp_path, port=1)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "_now", lambda: then)
        keys.certificates(tmp_path / "keys", "127.0.0.1")
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
