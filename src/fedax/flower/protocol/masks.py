"""Masks under which uploads are added up: SecAgg+, for one member and for the server.

Numbers are whole ones modulo 2^64. Streams of masks come from AES with keys of 256 bits; those of
Flower's own protocol come from seeds of 32 bits, which can be tried one by one. Keys are those of
X25519.

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
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedax.flower.protocol.records import Refused

LEVELS = 1 << 40
"""Whole numbers from 0 to the largest size of an entry; 2^22 clients may be added up."""
SECRET = 32
"""Bytes of a key."""
PRIME = (1 << 521) - 1
"""The order of the field of the shares, a prime larger than every shared secret."""
SHARE = 66
"""Bytes of a share."""
SOURCE = random.SystemRandom()
"""The system's source of randomness, for the coefficients of shares."""
FEWEST = 3
"""Least number of members of a sum: with two, each could compute the other's upload."""


class Keys(NamedTuple):
    """The keys of a member, of 32 bytes: of the masks that it shares with each other member, of its
    own mask, and of its letters.
    """

    pair: bytes
    own: bytes
    letters: bytes


PublicKeys = Mapping[int, Keys]
"""The public keys of every member, by its number."""


class Member:
    """A client in one sum.

    The keys of a session are derived from a secret, so that nothing is stored between its messages.

    Args:
        number: the client's.
        secret: its own.
        session: the sum's name.
    """

    def __init__(self, number: int, secret: bytes, session: str) -> None:
        self.number = number
        self.private = Keys(*(_derive(secret, f"{session} {name}") for name in Keys._fields))
        self.public = Keys(*map(_public_key, self.private))

    def deal(self, keys: PublicKeys, threshold: int) -> dict[int, bytes]:
        """Returns shares of its own and its pairwise key for every member, itself included, each
        encrypted for its recipient.

        Raises:
            Refused: too few members, its own keys changed, or one key twice.
        """
        if not fewest_that_open(len(keys)) <= threshold <= len(keys):
            raise Refused(
                f"shares for {len(keys)} members of which {threshold} open them, "
                f"expected more than half of them, and at least {FEWEST}"
            )
        all_keys = [key for member_keys in keys.values() for key in member_keys]
        if keys.get(self.number) != self.public or len(set(all_keys)) != len(all_keys):
            raise Refused("public keys of which its own are not there, or one is there twice")
        own = split_secret(self.private.own, threshold, keys)
        pair = split_secret(self.private.pair, threshold, keys)
        return {k: self._cipher(keys, self.number, k).encrypt(own[k] + pair[k]) for k in keys}

    def hide(self, numbers: np.ndarray, keys: PublicKeys) -> np.ndarray:
        """Returns whole numbers with its own mask, and with those that it shares with each other
        member.

        Args:
            numbers: the upload.
            keys: of all members. The masks depend on the whole list, so that another list has other
                masks.
        """
        own_mask = _own_mask(self.private.own, keys, numbers.size)
        pairwise = _pairwise_masks(self.number, self.private.pair, keys, keys, numbers.size)
        return numbers + own_mask + pairwise

    def shares(
        self, letters: Mapping[int, bytes], keys: PublicKeys, present: Collection[int]
    ) -> dict[int, bytes]:
        """Decrypts its shares: of the own keys of members in the sum, and of the pairwise keys of
        all others. So nobody's two keys are shown.

        Raises:
            InvalidToken: a letter that is not from whom it should be.
        """
        shares = {}
        for k in keys:
            both = self._cipher(keys, k, self.number).decrypt(letters[k])
            shares[k] = both[:SHARE] if k in present else both[SHARE:]
        return shares

    def _cipher(self, keys: PublicKeys, sender: int, recipient: int) -> Fernet:
        """Returns the cipher of the letter between two members, of whom this is one."""
        other = recipient if sender == self.number else sender
        key = _shared_key(self.private.letters, keys[other].letters, f"{sender} to {recipient}")
        return Fernet(base64.urlsafe_b64encode(key))


def fewest_that_open(members: int) -> int:
    """Returns how many of the members of a sum have to open it, and so have to be in it: a
    majority, so that two disjoint groups cannot both open masks, and at least `FEWEST`.
    """
    return max(FEWEST, members // 2 + 1)


def open_secrets(
    shown: Mapping[int, Mapping[int, bytes]],
    keys: PublicKeys,
    present: Collection[int],
    threshold: int,
) -> dict[int, bytes]:
    """Combines shares to the private keys of members: the own key of each that is there, and the
    pairwise key of each other. One that does not fit its public key is left out.

    Args:
        shown: by the member that sent them, its shares of the secret of each member.
        keys: of all members.
        present: the members whose own keys are shared; of the others it is the pairwise keys.
        threshold: how many shares give a secret.
    """
    chosen = list(shown)[:threshold]
    secrets = {k: combine_shares({j: shown[j][k] for j in chosen}) for k in keys}
    return {
        k: secret
        for k, secret in secrets.items()
        if _public_key(secret) == (keys[k].own if k in present else keys[k].pair)
    }


def split_secret(secret: bytes, threshold: int, members: Iterable[int]) -> dict[int, bytes]:
    """Returns shares of a secret by member, of which `threshold` give it and fewer give nothing
    (Shamir). Member k has the value of a polynomial at k + 1.
    """
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [SOURCE.randrange(PRIME) for _ in range(threshold - 1)]
    return {k: _evaluate(coefficients, k + 1).to_bytes(SHARE, "big") for k in members}


def _evaluate(coefficients: list[int], point: int) -> int:
    return functools.reduce(lambda total, c: (total * point + c) % PRIME, reversed(coefficients), 0)


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret of which these are shares by member, by interpolation at 0."""
    total = 0
    for k, share in shares.items():
        others = [j + 1 for j in shares if j != k]
        denominator = math.prod(other - k - 1 for other in others)
        total += int.from_bytes(share, "big") * math.prod(others) * pow(denominator, -1, PRIME)
    return (total % PRIME).to_bytes(SHARE, "big")[-SECRET:]


def remove_masks(
    total: np.ndarray,
    keys: PublicKeys,
    present: Collection[int],
    secrets: Mapping[int, bytes],
) -> np.ndarray:
    """Returns the sum without masks.

    Args:
        total: of what the members that are there sent.
        keys: of all whose masks are in it.
        present: those members.
        secrets: the own key of each of these, and the pairwise key of each other; see
            `open_secrets`.
    """
    for k, secret in secrets.items():
        if k in present:
            total = total - _own_mask(secret, keys, total.size)
        else:
            total = total + _pairwise_masks(k, secret, keys, present, total.size)
    return total


def stream(key: bytes, size: int) -> np.ndarray:
    """Returns whole numbers of 64 bits that cannot be told from random ones without the key of 32
    bytes.
    """
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), "<u8").astype(np.uint64)


def _own_mask(own: bytes, keys: PublicKeys, size: int) -> np.ndarray:
    # by an exchange with itself: shares may give another key of the same public one
    return stream(_shared_key(own, _public_key(own), f"own {_hash_members(keys)}"), size)


def _pairwise_masks(
    number: int, pair: bytes, keys: PublicKeys, others: Iterable[int], size: int
) -> np.ndarray:
    """Returns the masks that a member shares with others; those of two members for each other add
    up to 0.
    """
    total = np.zeros(size, np.uint64)
    purpose = f"pair {_hash_members(keys)}"
    for k in others:
        if k != number:
            mask = stream(_shared_key(pair, keys[k].pair, purpose), size)
            total = total + mask if number > k else total - mask
    return total


def _hash_members(keys: PublicKeys) -> str:
    """Returns a hash of the list of members with their public keys."""
    return hashlib.sha256(repr(sorted(keys.items())).encode()).hexdigest()


def _public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _shared_key(private: bytes, public: bytes, purpose: str) -> bytes:
    """Returns a key that only two members know.

    Raises:
        ValueError: bytes that are no public key.
    """
    key = X25519PrivateKey.from_private_bytes(private)
    return _derive(key.exchange(X25519PublicKey.from_public_bytes(public)), purpose)


def _derive(secret: bytes, purpose: str) -> bytes:
    return HKDF(hashes.SHA256(), SECRET, None, purpose.encode()).derive(secret)


def check_public_key(key: bytes) -> None:
    """Raises ValueError for bytes with which no key can be exchanged."""
    _shared_key(bytes(SECRET), key, "")


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
