"""Random generators and permutations keyed by words, so that every draw is a pure function of its purpose."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch


def keyed_generator(*key: object) -> torch.Generator:
    """A CPU generator that depends only on the words of ``key``, for example ``(seed, "order", epoch)``."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))


class KeyedPermutation:
    """A pseudo-random permutation of ``range(count)`` that stores nothing but its key.

    A generalized Feistel network on pairs (left, right) with left < a, right < b and a·b ≥ count, where a and b are
    about √count (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 5). Each round adds to
    one half a keyed hash (BLAKE2b) of the other one. Results beyond ``count`` are permuted again until one is below it
    ("cycle walking", ibid., section 3); as a·b - count < a, that is rare.
    """

    ROUNDS = 8
    """Four make a strong pseudo-random permutation (Luby and Rackoff, 1988) of large halves; small ones need more."""

    def __init__(self, count: int, *key: object) -> None:
        """``count``: at least 1; equal words of ``key`` give the same permutation."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.count = count
        self._a = math.isqrt(count - 1) + 1
        self._b = -(-count // self._a)
        self._keys = [
            hashlib.sha256("/".join(map(str, (*key, index))).encode()).digest() for index in range(self.ROUNDS)
        ]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(self.count))

    def __getitem__(self, index: int) -> int:
        """The number at place ``index``; IndexError if there is no such place."""
        if not 0 <= index < self.count:
            raise IndexError(f"place {index} of {self.count}")
        while True:
            right, left = divmod(index, self._a)
            for round, key in enumerate(self._keys):
                if round % 2:
                    right = (right + _hash(left, key)) % self._b
                else:
                    left = (left + _hash(right, key)) % self._a
            index = right * self._a + left
            if index < self.count:
                return index


def _hash(number: int, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8, key=key).digest(), "little")
