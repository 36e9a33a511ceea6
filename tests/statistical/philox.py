"""Normals from words of Philox, by another way than the kernel's."""

import math

import torch

# Above 2^63, and a draw whose lower half is above 2^31.
KEY, DRAW = 0xA99F31D0A4093822, 5 << 32 | 0xF0000007
BITS = {torch.float32: 31, torch.float64: 63}


def philox(key, counter):
    """Return four words of Philox4x32-10 (Salmon et al. 2011, Section 2)."""
    keys, c = [key & 0xFFFFFFFF, key >> 32], list(counter)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ keys[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ keys[1], first & 0xFFFFFFFF]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def expected_pair(place, dtype):
    """Return the pair of normals of a place."""
    a, b, c, d = philox(KEY, (place, 0, DRAW & 0xFFFFFFFF, DRAW >> 32))
    if dtype == torch.float64:
        e, f, _, _ = philox(KEY, (place, 1 << 30, DRAW & 0xFFFFFFFF, DRAW >> 32))
        a, b, c, d = (a << 32 | b) >> 1, c << 32 | d, e, f
    else:
        a >>= 1
    bits = BITS[dtype]
    if a < 2 ** {31: 16, 63: 43}[bits]:
        a += ((c << 32 | d) >> 11) * 2.0**-53 + 2.0**-53
    angle = (b if b < 2**bits else b - 2 ** (bits + 1)) * math.pi / 2**bits
    radius = math.sqrt(-2.0 * math.log(a / 2**bits))
    return radius * math.cos(angle), radius * math.sin(angle)
