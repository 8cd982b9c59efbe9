"""Marks every secret of a run, and finds them wherever they may have gone.

`Planted` puts itself between the program and its sources of secrets: every key and seed that is
drawn, derived or agreed on is remembered. `Search` looks for any eight neighbouring bytes of one
(at multiples of eight) in the encodings that programs print and store.
"""

import base64
import gc
import itertools
import os
import re
import sys
import types
from collections import deque
from importlib.util import find_spec

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import CipherContext
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hpcfl.crypto import ckks, keys

CHUNK = 8
LIMB_BITS = 31
PARTS = 16  # that are looked for of a key that is too long to look for all of it
# Opaque objects that hold a key which nobody can read back, but which is there.
KEY_HOLDERS = (AESGCM, X25519PrivateKey, Ed25519PrivateKey, CipherContext)
if find_spec("tenseal"):
    KEY_HOLDERS += (ckks.library().enc_context.Context,)


class Planted:
    """The secrets of everything that runs while they are planted, and what each is."""

    def __init__(self):
        self.secrets = {}

    def plant(self, patch):
        """Remember what the system's generator, key agreement and derivation give from now on."""
        derive, derive_each, agree = keys.derive, keys.derive_each, keys.agree

        def drawn(count):
            return self._keep(os.urandom(count), "drawn")

        def derived(*arguments, **named):
            return self._keep(derive(*arguments, **named), "derived")

        def derived_each(*arguments, **named):
            return [self._keep(key, "derived") for key in derive_each(*arguments, **named)]

        def agreed(private, public):
            return [self._keep(secret, "agreed on") for secret in agree(private, public)]

        others = {id(keys.system_secrets): drawn, id(derive): derived, id(agree): agreed}
        others[id(derive_each)] = derived_each
        # Under all names that the package has for them.
        for _, module in modules():
            for attribute, value in list(vars(module).items()):
                if id(value) in others:
                    patch.setattr(module, attribute, others[id(value)])
        self._plant_ckks(patch)
        return self

    def _plant_ckks(self, patch):
        """Remember parts of every key that TenSEAL draws by itself and a device shares."""
        write = ckks.Context.written

        def written(context):
            content = write(context)
            # What comes before says how it is compressed, as ciphertexts do.
            for start in range(1000, len(content) - 32, len(content) // PARTS):
                self._keep(content[start : start + 32], "of a key of CKKS, compressed")
            numbers = context._context.secret_key().data.data()
            for start in range(0, ckks.DEGREE, ckks.DEGREE // PARTS):
                part = np.array([numbers[start + place] for place in range(4)], "<u8")
                self._keep(part.tobytes(), "of a key of CKKS")
            return content

        patch.setattr(ckks.Context, "written", written)

    def _keep(self, secret, what):
        self.secrets.setdefault(bytes(secret), what)
        return secret

    def search(self):
        """Return a search for what is known by now; there must be something."""
        assert {"drawn", "derived"} <= set(self.secrets.values())
        return Search(self.secrets)


class Search:
    """Looks in bytes for secrets, which are the keys of a mapping to what each is."""

    def __init__(self, secrets):
        self._secrets = dict(secrets)
        owners, starts = [], []
        for secret in self._secrets:
            found = [needle[:CHUNK] for _, needle in encodings(secret)]
            starts += found
            owners += [secret] * len(found)
        places = np.frombuffer(b"".join(starts), "<u8")
        order = np.argsort(places, kind="stable")
        self._places = places[order]
        self._owners = [owners[place] for place in order.tolist()]

    def __call__(self, *haystacks):
        """Return what was found, in words; bytes and text alike."""
        raw = [one.encode() if isinstance(one, str) else one for one in haystacks]
        # Lists and arrays are printed with other white space than here.
        plain = [re.sub(rb"[\s,]+", b" ", one) for one in raw]
        joined = b"\0\0".join([*raw, *plain]) + bytes(CHUNK)
        windows = np.ndarray(len(joined) - CHUNK + 1, "<u8", joined, strides=(1,))
        first = np.searchsorted(self._places, windows)
        nearest = self._places[np.minimum(first, self._places.size - 1)]
        found = set()
        for start in np.flatnonzero(nearest == windows).tolist():
            behind = np.searchsorted(self._places, windows[start], "right")
            for secret in {*self._owners[first[start] : behind]}:
                found |= {
                    f"{self._secrets[secret]}, {form}"
                    for form, needle in encodings(secret)
                    if joined.startswith(needle, start)
                }
        return found


def encodings(secret):
    """Yield the forms in which a part of a secret could be written, eight bytes long or more."""
    half = len(secret) // 2
    for offset in range(0, len(secret) - CHUNK + 1, CHUNK):
        chunk = secret[offset : offset + CHUNK]
        yield "raw", chunk
        yield "reversed", chunk[::-1]
        yield "hexadecimal", chunk.hex().encode()
        yield "hexadecimal", chunk.hex().upper().encode()
        yield "repr", repr(chunk)[2:-1].encode()
        yield "list", " ".join(map(str, chunk)).encode()
        yield from _integers(chunk)
    for part in (secret, secret[:half], secret[half:]):
        yield from _integers(part)
    for start in range(3):
        part = secret[start : start + 12]
        yield "base64", base64.b64encode(part)
        yield "base64", base64.urlsafe_b64encode(part)
    number = int.from_bytes(secret, "little")
    limbs = [number >> shift & (2**LIMB_BITS - 1) for shift in range(0, 8 * len(secret), LIMB_BITS)]
    for one, other in itertools.pairwise(limbs[:-1]):  # the last one is short
        yield "limbs", np.array([one, other], "<u4").tobytes()
        yield "limbs", np.array([one, other], "<i8").tobytes()
        yield "limbs", f"{one} {other}".encode().ljust(CHUNK)


def _integers(part):
    """Yield a part as a number in digits, of which a secret has enough."""
    for order in ("little", "big"):
        yield "integer", str(int.from_bytes(part, order)).rjust(15, "0").encode()


def contents(roots):
    """Yield the bytes, text and large numbers that can be reached from objects, with the way there.

    What belongs to other packages is not followed: their modules and classes, and the globals of
    functions. An object of `KEY_HOLDERS` is yielded itself.
    """
    queue = deque(roots)
    seen = {}
    while queue:
        way, thing = queue.popleft()
        if id(thing) in seen or not _followed(thing):
            continue
        seen[id(thing)] = thing  # kept alive, so that no other gets its id
        if isinstance(thing, bytes | bytearray | memoryview):
            yield way, bytes(thing)
        elif isinstance(thing, str):
            yield way, thing.encode("utf-8", "surrogatepass")
        elif isinstance(thing, int) and thing.bit_length() > 60:
            yield way, str(thing).encode()
        elif isinstance(thing, np.ndarray) and thing.dtype.hasobject:
            queue.append((f"{way}[]", thing.tolist()))
        elif isinstance(thing, np.ndarray):
            yield way, thing.tobytes()
            queue.append((f"{way}.base", thing.base))
        elif isinstance(thing, KEY_HOLDERS):
            yield way, thing
        else:
            queue.extend((f"{way}{name}", value) for name, value in _referents(thing))


def _ours(name):
    return (name or "").partition(".")[0] == "hpcfl"


def _followed(thing):
    if isinstance(thing, types.ModuleType):
        return _ours(thing.__name__)
    if isinstance(thing, type):
        return _ours(thing.__module__)
    return not isinstance(thing, Planted | Search | types.CodeType | types.FrameType)


def _referents(thing):
    if isinstance(thing, types.ModuleType | type):
        yield from ((f".{name}", value) for name, value in vars(thing).items())
    elif isinstance(thing, types.FunctionType):
        held = list(thing.__closure__ or ())
        held += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        yield from ((f".{thing.__name__}()", value) for value in [*held, vars(thing)])
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield f"[{str(key)[:40]}]", (key, value)
    elif isinstance(thing, types.TracebackType):
        yield f" in {thing.tb_frame.f_code.co_name}", dict(thing.tb_frame.f_locals)
        yield "", thing.tb_next
    else:
        kind = type(thing).__name__
        yield from ((f".{kind}", value) for value in gc.get_referents(thing))


def modules():
    """Return all modules of the package that are loaded."""
    return [(name, module) for name, module in sorted(sys.modules.items()) if _ours(name)]


def left_behind(search, *roots):
    """Return the ways on which secrets can be reached from `roots` and from all modules."""
    ways = [*contents([*modules(), *roots])]
    found = {
        f"{way}: {type(thing).__name__}" for way, thing in ways if isinstance(thing, KEY_HOLDERS)
    }
    raw = [(way, thing) for way, thing in ways if isinstance(thing, bytes)]
    if search(*(thing for _, thing in raw)):
        found |= {f"{way}: {what}" for way, thing in raw for what in search(thing)}
    return found
