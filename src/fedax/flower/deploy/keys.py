"""Certificates and keys for a trial: an authority of its own, the server's certificate, and a key
pair for every client.
"""

import base64
import contextlib
import datetime
import hashlib
import inspect
import ipaddress
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedax.core import FedaxError
from fedax.utils.files import write, writing

DAYS = 365
AUTHORITIES = "ca.crt"
"""The file of the authorities that clients trust."""


def write_certificates(folder: Path, host: str) -> None:
    """Writes `ca.crt`, `server.crt` and `server.key`. The authority's own key is used once, and not
    kept.

    Args:
        folder: where to.
        host: the server's name or address; the loopback is there too.
    """
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = _common_name("fedax trial authority")

    def issue(subject: x509.Name, key: Any, *extensions: x509.ExtensionType) -> bytes:
        builder = _certificate_builder(subject, issuer, key.public_key())
        for extension in extensions:
            critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical)
        return builder.sign(authority, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)

    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = issue(
        issuer,
        authority,
        x509.BasicConstraints(ca=True, path_length=0),
        _key_usage("digital_signature", "key_cert_sign", "crl_sign"),
        identity,
    )
    # Flower's own programs reach a server that binds `0.0.0.0` or `::` by the loopback's address
    hosts = dict.fromkeys((host, "localhost", "127.0.0.1", "::1"))
    names = [_alternative_name(name) for name in hosts]
    server_certificate = issue(
        _common_name(host),
        server,
        x509.BasicConstraints(ca=False, path_length=None),
        _key_usage("digital_signature"),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity),
    )
    key_format = serialization.PrivateFormat.PKCS8
    secret = server.private_bytes(
        serialization.Encoding.PEM, key_format, serialization.NoEncryption()
    )
    write_public(folder / "ca.crt", root)
    write_public(folder / "server.crt", server_certificate)
    write_private(folder / "server.key", secret)


def _key_usage(*allowed: str) -> x509.KeyUsage:
    """Returns the extension that allows a key some uses and no others."""
    uses = inspect.signature(x509.KeyUsage).parameters
    return x509.KeyUsage(**{use: use in allowed for use in uses})


def check_certificates(folder: Path, names: Sequence[str]) -> None:
    """Refuses certificates that are not valid today.

    Of several authorities in `ca.crt` one has to be valid, such as the new one beside an old one.
    Of several certificates in `server.crt` all have to be: the server's and those that lead to its
    authority.

    Raises:
        FedaxError: one that has expired, or is not valid yet, with its dates; a file that cannot be
            read.
    """
    now = _now()
    for name in names:
        if not (path := folder / name).exists():
            continue
        spans = _validity_spans(path)
        invalid = [(first, last) for first, last in spans if not first <= now <= last]
        if len(invalid) == len(spans) or (invalid and name != AUTHORITIES):
            dates = " and ".join(f"{first:%Y-%m-%d} to {last:%Y-%m-%d}" for first, last in invalid)
            hint = "`fedax deploy renew` makes new ones; give ca.crt to every client"
            raise FedaxError(f"{path} is valid from {dates}, and today is {now:%Y-%m-%d}. {hint}.")


def certificate_ends(folder: Path) -> dict[str, float]:
    """Returns when the certificates of a folder end, in seconds since 1970, by file.

    A file with several authorities, such as an old and a new one, ends with the last one; a chain
    of certificates in `server.crt` with the first one.

    Raises:
        FedaxError: a file that cannot be read.
    """
    ends = {
        path.name: [last.timestamp() for _, last in _validity_spans(path)]
        for path in (folder / AUTHORITIES, folder / "server.crt")
        if path.exists()
    }
    return {
        name: max(file_ends) if name == AUTHORITIES else min(file_ends)
        for name, file_ends in ends.items()
    }


def _validity_spans(path: Path) -> list[tuple[datetime.datetime, datetime.datetime]]:
    """Returns from when to when each certificate of a file is valid."""
    with _reading(path, "certificates in PEM form"):
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
        return [
            (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
            for certificate in certificates
        ]


@contextlib.contextmanager
def _reading(path: Path, expected: str) -> Iterator[None]:
    """Turns errors of a file that is damaged or cannot be read into one that names it."""
    try:
        yield
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        reason = error.strerror if isinstance(error, OSError) else f"expected {expected}"
        hint = "Copy it again, or make a new one with `fedax deploy renew`"
        raise FedaxError(f"{path}: cannot be read ({reason}). {hint}.") from error


def write_client_key(folder: Path, k: int) -> None:
    """Writes `client-K` and `client-K.pub`, in the form of SSH."""
    key = ec.generate_private_key(ec.SECP384R1())
    key_format, unencrypted = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    write_private(
        folder / f"client-{k}",
        key.private_bytes(serialization.Encoding.PEM, key_format, unencrypted),
    )
    encoding, kind = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    write_public(folder / f"client-{k}.pub", key.public_key().public_bytes(encoding, kind) + b"\n")


def public_key(folder: Path, k: int) -> bytes:
    """Returns the public key of a client as PEM, in which form a server lists it.

    Raises:
        FedaxError: a file that cannot be read.
    """
    path = folder / f"client-{k}.pub"
    with _reading(path, "a public key in the form of SSH"):
        key = serialization.load_ssh_public_key(path.read_bytes())
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def sign(folder: Path, content: bytes) -> None:
    """Signs the bundle of the app. Writes the signature to `app.json` and, for the clients, the
    public key to `trusted.yaml`. The private key is used once, and not kept.

    Args:
        folder: where to.
        content: the bundle.
    """
    key, signed_at = ed25519.Ed25519PrivateKey.generate(), int(_now().timestamp())
    encoding, kind = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    text = key.public_key().public_bytes(encoding, kind)
    name = f"fpk_{hashlib.sha256(text).hexdigest()[:32]}"
    # the form of Flower: the seconds since 1970 in 8 bytes, and the hash of the bundle
    signature = key.sign(signed_at.to_bytes(8, "big") + hashlib.sha256(content).digest())
    record = {
        "public_key_id": name,
        "signed_at": signed_at,
        "signature": base64.urlsafe_b64encode(signature).decode(),
    }
    write_public(folder / "app.json", json.dumps(record).encode())
    write_public(folder / "trusted.yaml", f"{name}: '{text.decode()}'\n".encode())


def write_public(path: Path, content: bytes) -> None:
    """Writes what everybody may read."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)


def write_private(path: Path, content: bytes) -> None:
    """Writes what only the owner may read, and which nobody could read before."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content, 0o600)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: Any
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
