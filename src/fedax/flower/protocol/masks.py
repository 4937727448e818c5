"""Masks under which uploads are added up: SecAgg+, for one member and for the server.

Numbers are whole ones modulo 2^64. Streams of masks come from AES with keys of 256 bits; those of
Flower's own protocol come from seeds of 32 bits, which can be tried one by one.

Source: Bell, Bonawitz, Gascon, Lepoint and Raykova, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, CCS 2020, with the complete graph of neighbours; Bonawitz et al.,
Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4 without its
signatures: the server follows the protocol. Shares: Shamir, How to Share a Secret, Communications
of the ACM 22(11), 1979.

Experimental: the protocol and this code have not been audited.
"""

import base64
import functools
import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedax.flower.protocol.records import Refused

LEVELS = 1 << 40
"""Whole numbers from 0 to the largest size of an entry; 2^22 clients may be added up."""
CURVE = ec.SECP384R1()
SECRET = 47
"""Bytes of a private key, fewer than the order of the curve has."""
PRIME = (1 << 521) - 1
"""The order of the field of the shares, a prime larger than every shared secret."""
POINT, VALUE = 4, 66
"""Bytes of a share's point and of its value."""
SHARE = POINT + VALUE
SOURCE = random.SystemRandom()
"""The system's source of randomness, for the coefficients of shares."""
FEWEST = 3
"""Least number of members of a sum: with two, each could compute the other's upload."""

Keys = Mapping[int, tuple[bytes, bytes]]
"""Both public keys of every member, by its number."""


class Member(NamedTuple):
    """A client in one sum: its number, the key of its masks as bytes, that of its letters, and the
    seed of its own mask.
    """

    number: int
    secret: bytes
    letters: ec.EllipticCurvePrivateKey
    seed: bytes

    @classmethod
    def of(cls, number: int, secret: bytes, session: str) -> "Member":
        """Derives the keys of a session from a secret, so that nothing is stored between its
        messages.
        """

        def derive(what: str, length: int) -> bytes:
            return HKDF(hashes.SHA384(), length, None, f"{session} {what}".encode()).derive(secret)

        return cls(
            number,
            derive("masks", SECRET),
            _private_key(derive("letters", SECRET)),
            derive("seed", 32),
        )

    @property
    def public(self) -> tuple[bytes, bytes]:
        """Returns both public keys."""
        return public_bytes(_private_key(self.secret).public_key()), public_bytes(
            self.letters.public_key()
        )

    @property
    def commitment(self) -> bytes:
        """A hash of the seed, by which shares of it are checked."""
        return _commit(self.seed)

    def deal(self, keys: Keys, threshold: int) -> dict[int, bytes]:
        """Returns shares of its secrets for every member, itself included, each encrypted for its
        recipient.

        Raises:
            Refused: too few members, its own keys changed, or one key twice.
        """
        all_keys = [key for pair in keys.values() for key in pair]
        if not fewest_that_open(len(keys)) <= threshold <= len(keys):
            raise Refused(
                f"shares for {len(keys)} members of which {threshold} open them, "
                f"expected more than half of them, and at least {FEWEST}"
            )
        if keys.get(self.number) != self.public or len(set(all_keys)) != len(all_keys):
            raise Refused("public keys of which its own are not there, or one is there twice")
        seeds, secrets = (
            split_secret(text, threshold, len(keys)) for text in (self.seed, self.secret)
        )
        return {
            k: self._cipher(keys[k][1]).encrypt(_header(self.number, k) + seeds[i] + secrets[i])
            for i, k in enumerate(sorted(keys))
        }

    def hide(self, numbers: np.ndarray, keys: Keys) -> np.ndarray:
        """Returns whole numbers with its own mask, and with those that it shares with each other
        member.

        Args:
            numbers: the upload.
            keys: of all members. The masks depend on the whole list, so that another list has other
                masks.
        """
        members_digest, private_key = _hash_members(keys), _private_key(self.secret)
        own_mask = stream(_seed_of_own_mask(self.seed, members_digest), numbers.size)
        return (
            numbers
            + own_mask
            + _pairwise_masks(self.number, private_key, keys, members_digest, numbers.size)
        )

    def shares(
        self,
        letters: Mapping[int, bytes],
        keys: Keys,
        present: Iterable[int],
        dropped: Iterable[int],
    ) -> dict[int, bytes]:
        """Decrypts its shares: of the seeds of members in the sum, and of the keys of members that
        have gone.

        Raises:
            Refused: a letter that is not from whom it should be.
        """
        shares = {}
        for index, members in enumerate((present, dropped)):
            for k in members:
                letter, header = (
                    self._cipher(keys[k][1]).decrypt(letters[k]),
                    _header(k, self.number),
                )
                if not letter.startswith(header) or len(letter) != len(header) + 2 * SHARE:
                    raise Refused(f"a letter that is not the one from {k} to {self.number}")
                shares[k] = letter[len(header) + index * SHARE :][:SHARE]
        return shares

    def _cipher(self, key: bytes) -> Fernet:
        """Returns the cipher of letters between this member and the one with a public key."""
        shared = self.letters.exchange(ec.ECDH(), read_public_key(key))
        letter_key = HKDF(hashes.SHA384(), 32, None, b"letters").derive(shared)
        return Fernet(base64.urlsafe_b64encode(letter_key))


def fewest_that_open(members: int) -> int:
    """Returns how many of the members of a sum have to open it, and so have to be in it: a
    majority, so that two disjoint groups cannot both open masks, and at least `FEWEST`.
    """
    return max(FEWEST, members // 2 + 1)


def open_secrets(
    shown: Mapping[int, Mapping[int, bytes]],
    keys: Keys,
    commitments: Mapping[int, bytes],
    present: Iterable[int],
    threshold: int,
) -> dict[int, bytes]:
    """Combines shares to the secrets of members: the seed of each that is there, and the key of
    each other. A seed has to fit its commitment, a key its public key; a secret that does not is
    left out.

    Args:
        shown: by the member that sent them, its shares of the secret of each member.
        keys: of all members.
        commitments: of the seeds of all members.
        present: the members whose seeds are shared; of the others it is the keys.
        threshold: how many shares give a secret.
    """
    alive, secrets = set(present), dict[int, bytes]()
    for k in keys:
        shares = [member_shares[k] for member_shares in shown.values()]
        expected = commitments[k] if k in alive else keys[k][0]
        secret = _recover_secret(expected, k in alive, shares[:threshold])
        if secret is not None:
            secrets[k] = secret
    return secrets


def _recover_secret(expected: bytes, is_seed: bool, shares: list[bytes]) -> bytes | None:
    """Returns the secret that shares give, or None if it is not the expected one."""
    try:
        secret = combine_shares(shares)
        actual = _commit(secret) if is_seed else public_bytes(_private_key(secret).public_key())
    except ValueError:  # of shares that are no shares, or of a secret that is no key
        return None
    return secret if actual == expected else None


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Returns shares of a secret, of which `threshold` give it and fewer give nothing (Shamir).

    Args:
        secret: at most 64 bytes.
        threshold: the number of shares that are needed, at least 1.
        count: the number of shares.
    """
    # the byte in front keeps the secret's length, and tells a combined secret from a random number
    constant = int.from_bytes(b"\x01" + secret, "big")
    coefficients = [constant, *(SOURCE.randrange(PRIME) for _ in range(threshold - 1))]
    return [_make_share(point, coefficients) for point in range(1, count + 1)]


def _make_share(point: int, coefficients: list[int]) -> bytes:
    """Returns the polynomial's value at a point, with the point in front."""
    value = functools.reduce(
        lambda total, coefficient: (total * point + coefficient) % PRIME, reversed(coefficients), 0
    )
    return point.to_bytes(POINT, "big") + value.to_bytes(VALUE, "big")


def combine_shares(shares: list[bytes]) -> bytes:
    """Returns the secret of which these are shares, by interpolation at 0.

    Raises:
        ValueError: shares that no secret has.
    """
    if any(len(share) != SHARE for share in shares):
        raise ValueError("a share of another length")
    pairs = [
        (int.from_bytes(share[:POINT], "big"), int.from_bytes(share[POINT:], "big"))
        for share in shares
    ]
    total = 0
    for point, value in pairs:
        others = [other for other, _ in pairs if other != point]
        if point == 0 or len(others) != len(pairs) - 1:
            raise ValueError("a share at 0, or two at one point")
        numerator, denominator = math.prod(others), math.prod(other - point for other in others)
        total += value * numerator * pow(denominator, -1, PRIME)
    head, *secret = (total % PRIME).to_bytes(VALUE, "big").lstrip(b"\x00") or b"\x00"
    if head != 1:
        raise ValueError("shares of different secrets")
    return bytes(secret)


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Returns a public key as PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_public_key(text: bytes) -> ec.EllipticCurvePublicKey:
    """Reads a public key.

    Raises:
        ValueError: not a key of the curve.
    """
    key = serialization.load_pem_public_key(text)
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != CURVE.name:
        raise ValueError(f"not a public key of {CURVE.name}")
    return key


def _header(source: int, target: int) -> bytes:
    """Returns what stands in front of the shares in a letter: from whom it is, and to whom."""
    return source.to_bytes(8, "big") + target.to_bytes(8, "big")


def _commit(seed: bytes) -> bytes:
    return hashlib.sha256(b"seed " + seed).digest()


def remove_masks(
    total: np.ndarray,
    keys: Keys,
    present: Iterable[int],
    secrets: Mapping[int, bytes],
) -> np.ndarray:
    """Returns the sum without masks.

    Args:
        total: of what the members that are there sent.
        keys: of all whose masks are in it.
        present: those members.
        secrets: the seed of each of these, and the key of each other; see `open_secrets`.
    """
    alive, members_digest = set(present), _hash_members(keys)
    for k, secret in secrets.items():
        if k in alive:
            total = total - stream(_seed_of_own_mask(secret, members_digest), total.size)
        else:
            total = total + _pairwise_masks(
                k, _private_key(secret), {j: keys[j] for j in alive}, members_digest, total.size
            )
    return total


def stream(key: bytes, size: int) -> np.ndarray:
    """Returns whole numbers of 64 bits that cannot be told from random ones without the key of 32
    bytes.
    """
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), "<u8").astype(np.uint64)


def _hash_members(keys: Keys) -> bytes:
    """Returns a hash of the list of members with their public keys, in the order of their
    numbers.
    """
    digest = hashlib.sha256()
    for k in sorted(keys):
        for field in (str(k).encode(), *keys[k]):
            digest.update(len(field).to_bytes(4, "big") + field)
    return digest.digest()


def _seed_of_own_mask(seed: bytes, members_digest: bytes) -> bytes:
    return HKDF(hashes.SHA384(), 32, None, b"own " + members_digest).derive(seed)


def _pairwise_masks(
    number: int,
    private_key: ec.EllipticCurvePrivateKey,
    keys: Keys,
    members_digest: bytes,
    size: int,
) -> np.ndarray:
    """Returns the masks that a member shares with others; those of two members for each other add
    up to 0.
    """
    total = np.zeros(size, np.uint64)
    for k, (key, _) in keys.items():
        if k == number:
            continue
        shared = private_key.exchange(ec.ECDH(), read_public_key(key))
        mask = stream(
            HKDF(hashes.SHA384(), 32, None, b"pair " + members_digest).derive(shared), size
        )
        total = total + mask if number > k else total - mask
    return total


def _private_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(1 + int.from_bytes(secret, "big"), CURVE)


def to_fixed_point(values: np.ndarray, largest: float) -> np.ndarray:
    """Rounds numbers to whole multiples of `largest` / 2^40 (fixed point), with an error of at most
    half of that.

    Raises:
        Refused: one that is not finite, or larger.
    """
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > largest:
        raise Refused(
            f"an entry of an upload is not finite, or above {largest:g}, the most "
            "that fits under its mask"
        )
    return np.rint(values / largest * LEVELS).astype(np.int64).view(np.uint64)


def from_fixed_point(total: np.ndarray, largest: float) -> np.ndarray:
    """Returns the sum that fixed-point numbers (uint64, modulo 2^64) stand for."""
    return total.view(np.int64).astype(np.float64) / LEVELS * largest
