"""The certificate, key pairs of clients, and the signature of the app."""

import base64
import datetime
import hashlib
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from fedax.utils.files import OWNER, write

LIFETIME = datetime.timedelta(days=365)
SSH = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH


def write_certificate(folder: Path, host: str) -> None:
    """Writes `server.key` and a certificate that is its own authority, `server.crt` and `ca.crt`.

    Args:
        folder: where to.
        host: the server's name or address; the loopback is there too.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedax")])
    # Flower's own programs reach a server that binds `0.0.0.0` or `::` by the loopback's address
    hosts = [_alternative_name(name) for name in {host, "localhost", "127.0.0.1", "::1"}]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA384())
        .public_bytes(serialization.Encoding.PEM)
    )
    for file in ("ca.crt", "server.crt"):
        write(folder / file, certificate)
    write(folder / "server.key", _private_bytes(key, serialization.PrivateFormat.PKCS8), OWNER)


def write_key_pair(private: Path, public: Path) -> None:
    """Writes a client's key pair in the form of SSH."""
    key = ec.generate_private_key(ec.SECP384R1())
    write(private, _private_bytes(key, serialization.PrivateFormat.OpenSSH), OWNER)
    write(public, key.public_key().public_bytes(*SSH) + b"\n")


def read_public_key(path: Path) -> bytes:
    """Returns a public key as PEM, in which form a server lists it."""
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
    key = ed25519.Ed25519PrivateKey.generate()
    signed_at = int(datetime.datetime.now(datetime.UTC).timestamp())
    text = key.public_key().public_bytes(*SSH)
    name = f"fpk_{hashlib.sha256(text).hexdigest()[:32]}"
    # the form of Flower: the seconds since 1970 in 8 bytes, and the hash of the bundle
    signature = key.sign(signed_at.to_bytes(8, "big") + hashlib.sha256(content).digest())
    record = {
        "public_key_id": name,
        "signed_at": signed_at,
        "signature": base64.urlsafe_b64encode(signature).decode(),
    }
    write(folder / "app.json", json.dumps(record))
    write(folder / "trusted.yaml", f"{name}: '{text.decode()}'\n")


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
