"""Masks under which uploads are added up: SecAgg+ by the primitives of Flower, for one member and
for the server.

Numbers are whole ones modulo 2^64. Streams of masks come from AES with keys of 256 bits; those of
Flower's own protocol come from seeds of 32 bits, which can be tried one by one.

Source: Bell, Bonawitz, Gascon, Lepoint and Raykova, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, CCS 2020, with the complete graph of neighbours; Bonawitz et al.,
Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4 without its
signatures: the server follows the protocol.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

from fedax.flower.protocol.records import Refused

LEVELS = 1 << 40
"""Whole numbers from 0 to the largest size of an entry; 2^22 clients may be added up."""
SECRET = 47
"""Bytes of a private key, fewer than the order of the curve has."""

ATTEMPTS = 1000
"""The most sets of shares that are tried for a secret."""

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

        def derived(what: str, length: int) -> bytes:
            return HKDF(hashes.SHA384(), length, None, f"{session} {what}".encode()).derive(secret)

        return cls(
            number,
            derived("masks", SECRET),
            _private(derived("letters", SECRET)),
            derived("seed", 32),
        )

    @property
    def public(self) -> tuple[bytes, bytes]:
        """Returns both public keys."""
        return public_key_to_bytes(_private(self.secret).public_key()), public_key_to_bytes(
            self.letters.public_key()
        )

    @property
    def commitment(self) -> bytes:
        """A hash of the seed, by which shares of it are checked."""
        return _commitment(self.seed)

    def deal(self, keys: Keys, threshold: int) -> dict[int, bytes]:
        """Returns shares of its secrets for every member, itself included, each encrypted for its
        recipient.

        Raises:
            Refused: too few members, its own keys changed, or one key twice.
        """
        flat = [key for pair in keys.values() for key in pair]
        if len(keys) < threshold or 2 * threshold <= len(keys):
            raise Refused(
                f"shares for {len(keys)} members of which {threshold} open them, "
                "expected more than half of them"
            )
        if keys.get(self.number) != self.public or len(set(flat)) != len(flat):
            raise Refused("public keys of which its own are not there, or one is there twice")
        seeds, secrets = (
            create_shares(text, threshold, len(keys)) for text in (self.seed, self.secret)
        )
        return {
            k: encrypt(
                self._shared(keys[k][1]),
                share_keys_plaintext_concat(self.number, k, seeds[i], secrets[i]),
            )
            for i, k in enumerate(sorted(keys))
        }

    def hide(self, numbers: np.ndarray, keys: Keys, factor: float = 1.0) -> np.ndarray:
        """Returns whole numbers with its own mask, and with those that it shares with each other
        member.

        Args:
            numbers: the upload.
            keys: of all members. The masks depend on the whole list, so that another list has other
                masks.
            factor: by which the upload was multiplied. Another factor has another own mask.
        """
        list_, own = _name(keys), _private(self.secret)
        mine = stream(_seed_of_own_mask(self.seed, list_, factor), numbers.size)
        return numbers + mine + _pairwise(self.number, own, keys, list_, numbers.size)

    def shares(
        self, letters: Mapping[int, bytes], keys: Keys, there: Iterable[int], gone: Iterable[int]
    ) -> dict[int, bytes]:
        """Decrypts its shares: of the seeds of members in the sum, and of the keys of members that
        have gone.

        Raises:
            Refused: a letter that is not from whom it should be.
        """
        found = {}
        for place, members in enumerate((there, gone)):
            for k in members:
                source, target, *both = share_keys_plaintext_separate(
                    decrypt(self._shared(keys[k][1]), letters[k])
                )
                if (source, target) != (k, self.number):
                    raise Refused(
                        f"a letter from {source} to {target} in place of one from {k} "
                        f"to {self.number}"
                    )
                found[k] = both[place]
        return found

    def _shared(self, key: bytes) -> bytes:
        return generate_shared_key(self.letters, bytes_to_public_key(key))


class Opened(NamedTuple):
    """The secrets that shares give.

    Attributes:
        secrets: the seed of each member that is there, and the key of each other, as far as shares
            of it fit together.
        liars: by member, the members of whose secrets it sent a share that does not fit.
    """

    secrets: dict[int, bytes]
    liars: dict[int, list[int]]


def open_secrets(
    shown: Mapping[int, Mapping[int, bytes]],
    keys: Keys,
    commitments: Mapping[int, bytes],
    there: Iterable[int],
    threshold: int,
) -> Opened:
    """Combines shares to the secrets of all members, and finds shares that were altered.

    A seed has to fit its commitment, a key its public key. Shares outside a set that fits are
    checked one by one in it.

    Args:
        shown: by the member that sent them, its shares of the secret of each member.
        keys: of all members.
        commitments: of the seeds of all members.
        there: the members whose seeds are shared; of the others it is the keys.
        threshold: how many shares give a secret.
    """
    alive, secrets = set(there), dict[int, bytes]()
    liars: dict[int, list[int]] = {}
    for k in keys:
        fits = functools.partial(_fits, commitments[k] if k in alive else keys[k][0], k in alive)
        shares = {j: sent[k] for j, sent in shown.items()}
        for chosen in itertools.islice(itertools.combinations(shares, threshold), ATTEMPTS):
            rest = [shares[j] for j in chosen[1:]]
            if (secret := fits([shares[chosen[0]], *rest])) is not None:
                secrets[k] = secret
                for j in set(shares) - set(chosen):
                    if fits([shares[j], *rest]) is None:
                        liars.setdefault(j, []).append(k)
                break
    return Opened(secrets, liars)


def _fits(expected: bytes, is_seed: bool, shares: list[bytes]) -> bytes | None:
    """Returns the secret that shares give, or None if it is not the expected one."""
    try:
        secret = combine_shares(shares)
        found = (
            _commitment(secret) if is_seed else public_key_to_bytes(_private(secret).public_key())
        )
    except (ValueError, IndexError, OverflowError):  # of shares that are no shares
        return None
    return secret if found == expected else None


def _commitment(seed: bytes) -> bytes:
    return hashlib.sha256(b"seed " + seed).digest()


def remove_masks(
    total: np.ndarray,
    keys: Keys,
    there: Iterable[int],
    secrets: Mapping[int, bytes],
    factors: Mapping[int, float] | None = None,
) -> np.ndarray:
    """Returns the sum without masks.

    Args:
        total: of what the members that are there sent.
        keys: of all whose masks are in it.
        there: those members.
        secrets: the seed of each of these, and the key of each other; see `open_secrets`.
        factors: of the members, as they were given to `Member.hide`; 1 by default.
    """
    alive, list_ = set(there), _name(keys)
    for k, secret in secrets.items():
        if k in alive:
            factor = 1.0 if factors is None else factors[k]
            total = total - stream(_seed_of_own_mask(secret, list_, factor), total.size)
        else:
            total = total + _pairwise(
                k, _private(secret), {j: keys[j] for j in alive}, list_, total.size
            )
    return total


def stream(key: bytes, size: int) -> np.ndarray:
    """Returns whole numbers of 64 bits that cannot be told from random ones without the key of 32
    bytes.
    """
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), "<u8").astype(np.uint64)


def _name(keys: Keys) -> bytes:
    """Returns a hash of the list of members with their public keys, in the order of their
    numbers.
    """
    digest = hashlib.sha256()
    for k in sorted(keys):
        for part in (str(k).encode(), *keys[k]):
            digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _seed_of_own_mask(seed: bytes, members: bytes, factor: float) -> bytes:
    return HKDF(hashes.SHA384(), 32, None, b"own " + members + float(factor).hex().encode()).derive(
        seed
    )


def _pairwise(
    number: int, own: ec.EllipticCurvePrivateKey, keys: Keys, members: bytes, size: int
) -> np.ndarray:
    """Returns the masks that a member shares with others; those of two members for each other add
    up to 0.
    """
    total = np.zeros(size, np.uint64)
    for k, (key, _) in keys.items():
        if k == number:
            continue
        shared = own.exchange(ec.ECDH(), bytes_to_public_key(key))
        mask = stream(HKDF(hashes.SHA384(), 32, None, b"pair " + members).derive(shared), size)
        total = total + mask if number > k else total - mask
    return total


def _private(secret: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(1 + int.from_bytes(secret, "big"), ec.SECP384R1())


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
