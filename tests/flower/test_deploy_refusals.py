"""A deployment's address and certificates are checked where the user looks, before Flower's
programs start."""

import contextlib
import dataclasses
import datetime
import socket
import ssl
import tempfile
import threading

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedax.core import FedaxError, InvalidInput
from fedax.flower.deploy import keys, worker
from fedax.flower.deploy.processes import (
    check_address,
    connection_failure,
    host_of,
    superlink_command,
)
from fedax.flower.deploy.settings import Deployment
from fedax.flower.deploy.trial import make, run_client, run_server


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


def certificate(name, first, last):
    """A certificate in PEM form that is valid for some days, counted from today."""
    today, key = datetime.datetime.now(datetime.UTC), ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today + datetime.timedelta(days=first))
        .not_valid_after(today + datetime.timedelta(days=last))
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_every_certificate_of_a_chain_has_to_be_valid(tmp_path):
    """And any of several authorities: an old one may stay beside a new one."""
    chain = [certificate("fl.example.org", -90, 10), certificate("an authority", -500, 1000)]
    old = [certificate("fl.example.org", -90, -1), certificate("an authority", -500, -2)]
    now, day = datetime.datetime.now(datetime.UTC).timestamp(), 24 * 60 * 60.0
    server, ca = tmp_path / "server.crt", tmp_path / "ca.crt"

    def ends():
        return [round((end - now) / day) for end in keys.certificate_ends(tmp_path).values()]

    ca.write_bytes(old[1] + chain[1])
    server.write_bytes(b"".join(chain))
    keys.check_certificates(tmp_path, ("ca.crt", "server.crt"))
    assert ends() == [1000, 10]
    for content, end in ((old[0] + chain[1], -1), (chain[0] + old[1], -2)):
        server.write_bytes(content)
        with pytest.raises(
            FedaxError, match=r"server.crt is valid from \d{4}-\d\d-\d\d to \S+, and"
        ):
            keys.check_certificates(tmp_path, ("ca.crt", "server.crt"))
        assert ends() == [1000, end]
    ca.write_bytes(old[0] + old[1])
    with pytest.raises(FedaxError, match=r"ca.crt is valid from \S+ to \S+ and \S+ to \S+, and"):
        keys.check_certificates(tmp_path, ("ca.crt",))


@pytest.mark.parametrize(
    "content", [b"garbage", b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_damaged_certificates_and_keys_are_named(tmp_path, content):
    (tmp_path / "server.crt").write_bytes(content)
    (tmp_path / "client-0.pub").write_bytes(content)
    for read in (
        lambda: keys.check_certificates(tmp_path, ("server.crt",)),
        lambda: keys.certificate_ends(tmp_path),
    ):
        with pytest.raises(FedaxError, match=r"server.crt: cannot be read \(expected certificates"):
            read()
    with pytest.raises(FedaxError, match=r"client-0.pub: cannot be read \(expected a public key"):
        keys.public_key(tmp_path, 0)
    with pytest.raises(FedaxError, match=r"client-1.pub: cannot be read \(No such file"):
        keys.public_key(tmp_path, 1)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("müller.example.org", "xn--mller-kva.example.org:9093"),
        ("Müller.example.org", "xn--mller-kva.example.org:9093"),
        ("my_server", "my_server:9093"),
        ("::1", "[::1]:9093"),
        ("10.0.0.7", "10.0.0.7:9093"),
    ],
)
def test_hosts_that_certificates_and_addresses_can_have(host, address, tmp_path):
    deployment = Deployment(tmp_path, host=host)
    assert deployment.address == address
    deployment.save()
    assert Deployment.load(tmp_path) == deployment
    keys.write_certificates(tmp_path / "keys", deployment.host)
    content = (tmp_path / "keys" / "server.crt").read_bytes()
    names = x509.load_pem_x509_certificate(content).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert str(names.value[0].value) == deployment.host


@pytest.mark.parametrize(
    "host",
    [
        *("fl.example.org:9093", "https://fl.example.org", "fl.example.org/", "my host", "[::1]"),
        *("", " ", " fl.example.org", "fl.example.org\n", "a..b", "-a.org", "256.1.1.1", "10.0.0"),
        *("fe80::1%eth0", "a" * 64, "a." * 130 + "org", "straße.example.org", "a。b", "::1::"),
    ],
)
def test_other_hosts_are_refused_before_anything_is_written(host, tmp_path):
    with pytest.raises(
        InvalidInput, match=r"host: got .*; allowed: the name or the IP address of a"
    ):
        make(tmp_path / "site", tmp_path / "experiment.toml", host=host)
    assert not (tmp_path / "site").exists()


def test_a_long_folder_for_temporary_files(tmp_path, monkeypatch):
    """A Unix socket has a path of about 100 bytes."""
    with worker.open_socket() as (_, path):
        assert path.parent.stat().st_mode & 0o777 == 0o700
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(FedaxError, match=r"a Unix socket cannot be made.*Set TMPDIR to a folder"):
        worker.open_socket().__enter__()
    assert list(long.iterdir()) == []
