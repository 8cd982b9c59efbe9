"""Sums of vectors that were proven to be short, with two servers (PINE, Rothblum et al. 2024).

Each device sends additive shares of its quantised vector, one to the server, called the leader, and
one to the helper, with a proof on them that the vector's Euclidean norm is at most B. The two check
each proof together, and add up their shares of the vectors that passed; the helper's sum removes
its shares from the leader's. A device whose proof fails, or that is missing, costs only itself.

Shares and proofs (:mod:`hpcfl.crypto.pine`) are in a field of 40 bits, and B is the largest norm
that it can enforce. Devices clip vectors to the norm C of ``--clip-norm``, of which levels, the
integers per unit, make B less what rounding may add: for the heaviest device, if weights differ.

What seals the helper's share, and the proof's nonce, name the round, its parameters and the device,
so a report counts only where it was made. The helper's share is bound to the public part, too.

Messages, after the envelope (all numbers little-endian; "bits" are a bitmap of all n devices that
enrolled; the public keys of the enrolment travel as in `assisted`):

============  =============  ======================================================================
phase         direction      payload
============  =============  ======================================================================
model         to devices     d float32
verify_key    to the helper  32 bytes that devices do not know: they decide where proofs are checked
masked_input  to the server  the helper's share, sealed (128 + 16 bytes), the public part (128), the
                             leader's share (5 (M + Pi) + 64: values and bits, and the proof)
verify        to the helper  bits of the devices with reports, the first 272 bytes of each report
verify        to the server  a verifier of each report; zeros for a share that does not open
unmask        to the helper  bits of the devices whose reports passed, the seeds of each (64 bytes)
unmask        to the server  d elements of 5 bytes: the sum of the helper's shares
============  =============  ======================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import assisted
from hpcfl.algorithms.aggregation.assisted import AssistedMember, HelpingMember
from hpcfl.algorithms.aggregation.base import MODEL, AggregationProtocol, Enrolment
from hpcfl.algorithms.aggregation.messages import bits, parse_vector, split_bits
from hpcfl.algorithms.aggregation.promises import Certain, Outcome, Promise, objection
from hpcfl.algorithms.aggregation.quantised import (
    DeviceState,
    QuantisedDevice,
    QuantisedProtocol,
    QuantisedServer,
    until,
)
from hpcfl.algorithms.aggregation.sealed import CLOSED, TAG_BYTES, seal, unseal
from hpcfl.algorithms.noise import clip_l2
from hpcfl.algorithms.parameters import Parameters
from hpcfl.algorithms.quantisation import Quantiser
from hpcfl.comm.phases import BROADCAST, GATHER, LOCAL, Method, Payload, Role, Step, room
from hpcfl.crypto import keys, pine
from hpcfl.crypto.groups import Field
from hpcfl.crypto.pine import HELPER, LEADER, NotShort
from hpcfl.crypto.proofs import F40
from hpcfl.errors import MessageError, RefusedError, UsageError
from hpcfl.options.protocols import HelperOptions, MaskingOptions, ProofOptions
from hpcfl.privacy.accounting.distributed import rounded_norm
from hpcfl.privacy.masking import OnlySummed
from hpcfl.values import dataclass, field

VERIFY_KEY_BYTES = 32
GROUP = Field(F40.modulus, "field40", 40)
SEALED = pine.Pine.helper_bytes + TAG_BYTES
RELAYED = SEALED + pine.Pine.public_bytes
NONCE = bytes(12)  # of a sealed share, whose key has no other use


def norm_before_rounding(bound: int, dim: int) -> float:
    """Return a norm such that vectors of it, rounded, have at most the norm B; or UsageError."""
    # What rounding adds grows as vectors get shorter, by less than twice if d is far below B**2.
    norm = bound - 2 * (rounded_norm(bound, dim) - bound)
    if norm < 1 or rounded_norm(norm, dim) > bound:
        raise UsageError(f"pine proves norms of {bound}, too short to round {dim} values to")
    return norm


class PineMember(AssistedMember):
    """An enrolled device: its secret with the helper, and the last round that it reported in."""

    entered, scheme, use = "sent a report for", "pine", "helper's share"


class PineHelpingMember(HelpingMember):
    """The enrolled helper: its secrets with the devices, and the last round that it verified."""

    entered, scheme, use = "had reports for", "pine", "helper's share"


class PineDevice(QuantisedDevice):
    """A device's side of one round; `_member` is its state for all rounds."""

    _protocol: Pine
    _member: PineMember

    def send_masked_input(self, vector: NDArray[np.floating]) -> Payload:
        """Return the shares of the quantised vector, and the proof that it is short."""
        protocol, proofs = self._protocol, self._protocol.proofs
        place, nonce = protocol.place(self._member.id, self._round)
        # A second vector with a proof for the same round would be a second vote.
        key, *_ = self._member.mask_keys(protocol, self._round)
        integers = protocol.quantise(vector, self.id, self._round)
        report = proofs.shard(integers, nonce, self._secrets(proofs.rand_bytes))
        payload, share = room(protocol.largest_message), np.frombuffer(report.helper, np.uint8)
        seal([(key, NONCE, place + report.public)], [share], payload[None, :SEALED])
        payload[SEALED:] = np.frombuffer(report.public + report.leader, np.uint8)
        return payload


@dataclass
class HelperState(DeviceState):
    """What the helper keeps between the steps of a round."""

    verify_key: bytes = until("verify", bytes)
    verifiers: bytes = until("verify", bytes)
    # By device, of the reports that opened: the seeds that its verifier is for, and the share.
    seeds: dict[int, bytes] = field(default_factory=dict, repr=False)
    shares: dict[int, bytes] = field(default_factory=dict, repr=False)
    accepted: list[int] = field(default_factory=list)  # the devices in the sum


class PineHelper:
    """The helper's side of one round; `member` is its state for all rounds."""

    kept = ("state",)

    def __init__(self, protocol: Pine, round_index: int, member: PineHelpingMember) -> None:
        self._protocol = protocol
        self._round = round_index
        self._member = member
        self.state = HelperState()

    def receive_verify_key(self, payload: Payload) -> None:
        """Keep the key that decides where proofs are checked; refuse a second one."""
        if self.state.verify_key:
            raise RefusedError(f"{self._member.name} refuses a second key to verify with")
        key = parse_vector(payload, "u1", VERIFY_KEY_BYTES, "verify_key")
        self.state.verify_key = key.tobytes()

    def receive_verify(self, payload: Payload) -> None:
        """Open the helper's shares, and prepare what the leader needs to check each proof."""
        protocol, member, state = self._protocol, self._member, self.state
        if not state.verify_key:
            raise RefusedError(f"{member.name} has no key to verify with")
        listed, rest = split_bits(payload, member.devices, "verify")
        reports = parse_vector(rest, "u1", RELAYED * len(listed), "verify").reshape(-1, RELAYED)
        known = member.known(listed)
        round_keys = dict(zip(known, member.mask_keys(protocol, self._round, known), strict=True))
        found = []
        for id, report in zip(listed, reports, strict=True):
            found.append(bytes(protocol.proofs.verifier_bytes))
            place, nonce = protocol.place(id, self._round)
            public, opened = report[SEALED:].tobytes(), np.empty((1, SEALED - TAG_BYTES), np.uint8)
            sealed = [(round_keys.get(id, b""), NONCE, place + public)]
            if id not in round_keys or unseal(sealed, report[None, :SEALED], opened)[0]:
                continue
            share = opened.tobytes()
            try:
                made = protocol.proofs.prepare(HELPER, state.verify_key, nonce, public, share)
            except ValueError:  # no proof can be checked at the point drawn: as if it were wrong
                continue
            found[-1], state.seeds[id], state.shares[id] = made.verifier, made.seeds, share
        state.verifiers = b"".join(found)

    def send_verify(self) -> Payload:
        """Return the verifiers of all reports."""
        if not self.state.verifiers:
            raise RefusedError(f"{self._member.name} was not asked to verify")
        return np.frombuffer(self.state.verifiers, np.uint8)

    def receive_unmask(self, payload: Payload) -> None:
        """Take the devices in the sum; refuse fewer than the threshold, and a second list."""
        protocol, member, state = self._protocol, self._member, self.state
        accepted, rest = split_bits(payload, member.devices, "unmask")
        size = protocol.proofs.seeds_bytes
        seeds = parse_vector(rest, "u1", size * len(accepted), "unmask").tobytes()
        wrong = "it has told it" if state.accepted else None
        for id, agreed in zip(accepted, keys.cut(seeds, size), strict=True):
            if state.seeds.get(id) != agreed:
                wrong = f"it has no report of device {id} that passes"
        outcome = Outcome(protocol.parameters.devices, len(accepted))
        wrong = wrong or objection(protocol.promises(), outcome)
        if wrong is not None:
            raise RefusedError(f"{member.name} refuses to tell its sum: {wrong}")
        state.accepted = accepted

    def send_unmask(self) -> Payload:
        """Return the sum of the helper's shares of the vectors that passed."""
        if not self.state.accepted:
            raise RefusedError(f"{self._member.name} was not asked for its sum")
        proofs = self._protocol.proofs
        total = np.zeros(proofs.dim, np.uint64)
        for id in self.state.accepted:
            total += proofs.output(HELPER, self.state.shares[id])
        return np.frombuffer(proofs.field.encode(proofs.field.reduce(total)), np.uint8)


@dataclass
class Reported:
    """What the leader keeps of a report; the sum takes it in once its proof has passed."""

    relayed: bytes  # the helper's sealed share and the public part
    share: bytes = field(repr=False)
    verifier: bytes
    seeds: bytes = field(repr=False)


class PineServer(QuantisedServer):
    """The leader's side of one round."""

    _protocol: Pine
    state: dict[int, Reported]  # by device

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        # Drawn before any report, for this round alone: devices must not know it beforehand.
        self._verify_key = self._secrets(VERIFY_KEY_BYTES)
        self._sum = np.zeros(self._dim, np.uint64)
        self._verified, self._summed = set[int](), set[int]()  # the helper, once it has answered

    def send_verify_key(self) -> Payload:
        """Return the key that decides where proofs are checked."""
        return np.frombuffer(self._verify_key, np.uint8)

    def receive_masked_input(self, sender: int, payload: Payload) -> None:
        """Prepare what this server needs to check a report's proof, and keep the report."""
        protocol, proofs = self._protocol, self._protocol.proofs
        name = self._first("masked_input", sender, self.state)
        raw = parse_vector(payload, "u1", protocol.largest_message, "masked_input", name)
        relayed, share = raw[:RELAYED].tobytes(), raw[RELAYED:].tobytes()
        _, nonce = protocol.place(self._members[sender], self.round_index)
        try:
            made = proofs.prepare(LEADER, self._verify_key, nonce, relayed[SEALED:], share)
        except ValueError as error:
            raise MessageError("masked_input", name, str(error)) from None
        # Until the decision, a share's bytes take less memory than its numbers.
        self.state[sender] = Reported(relayed, share, made.verifier, made.seeds)

    def finish_masked_input(self) -> None:
        """Go on only with enough reports."""
        self._enough(len(self.state), "sent their reports")

    def send_verify(self) -> Payload:
        """Return the helper's part of all reports."""
        there = sorted(self.state)
        return self._told(there, (self.state[sender].relayed for sender in there))

    def receive_verify(self, number: int, payload: Payload) -> None:
        """Decide on every report, and add up those that pass."""
        proofs, size = self._protocol.proofs, self._protocol.proofs.verifier_bytes
        name = self._first("verify", number, self._verified, "helper")
        raw = parse_vector(payload, "u1", size * len(self.state), "verify", name).tobytes()
        found = dict(zip(sorted(self.state), keys.cut(raw, size), strict=True))
        passed = set()
        for sender, verifier in found.items():
            report = self.state[sender]
            try:
                proofs.decide(report.verifier, verifier, report.relayed[SEALED:])
                passed.add(sender)
            except NotShort:
                continue
            except ValueError as error:
                raise MessageError("verify", name, str(error)) from None
        self._verified.add(number)
        for sender, verifier in found.items():
            report = self.state[sender]
            if sender in passed:
                self._sum += proofs.output(LEADER, report.share)
                self.survivors.append(sender)
            elif any(verifier):
                norm = f"{proofs.norm_bound} quanta, for {self._protocol.clips}"
                self.refused[sender] = RefusedError(
                    f"device {sender} is left out, not short: its vector was not proven to have at "
                    f"most the norm of {norm}"
                )
            else:
                self._refuse("masked_input", sender, CLOSED)
            report.share = b""

    def finish_verify(self) -> None:
        """Fix the devices in the sum, and check the promises about it."""
        self._require(len(self._verified), "sent verifiers", 1, "helpers", 1)
        self._settle_survivors("sent vectors that were proven short")

    def send_unmask(self) -> Payload:
        """Return the devices in the sum, with what their proofs depend on."""
        return self._told(self.survivors, (self.state[one].seeds for one in self.survivors))

    def receive_unmask(self, number: int, payload: Payload) -> None:
        """Add the helper's sum, which removes its shares."""
        name = self._first("unmask", number, self._summed, "helper")
        proofs, size = self._protocol.proofs, self._protocol.proofs.element_bytes * self._dim
        raw = parse_vector(payload, "u1", size, "unmask", name).tobytes()
        try:
            self._sum += proofs.output(LEADER, raw)
        except ValueError as error:
            raise MessageError("unmask", name, str(error)) from None
        self._summed.add(number)

    def finish_unmask(self) -> None:
        """End the round if the helper has not answered, as its shares are still in the sum."""
        self._require(len(self._summed), "sent the sum of its shares", 1, "helpers", 1)

    def finish_result(self) -> None:
        self.unmasked = GROUP.reduce(self._sum.view(np.int64))
        super().finish_result()

    def _told(self, there: Iterable[int], contents: Iterable[bytes]) -> Payload:
        """Return a message to the helper: bits of devices, and the content for each."""
        named = bits([self._members[sender] for sender in there], self._population)
        return np.concatenate([named, np.frombuffer(b"".join(contents), np.uint8)])


Device, Server, Helper = PineDevice, PineServer, PineHelper


class Pine(QuantisedProtocol):
    """Sums of whole vectors that were proven short to two servers."""

    name = "pine"
    family = ""  # the proofs decide on the field
    options = (*AggregationProtocol.options, HelperOptions, ProofOptions)
    min_devices = 2
    device_class = PineDevice
    server_class = PineServer
    most_helpers = default_helpers = 1
    noise_adds_up = False
    steps: tuple[Step, ...] = (
        MODEL,
        Step(
            "verify_key",
            BROADCAST,
            Server.send_verify_key,
            Helper.receive_verify_key,
            role=Role.HELPER,
        ),
        Step(
            "masked_input",
            GATHER,
            Device.send_masked_input,
            Server.receive_masked_input,
            upload=True,
            finish=Server.finish_masked_input,
        ),
        Step("verify", BROADCAST, Server.send_verify, Helper.receive_verify, role=Role.HELPER),
        Step(
            "verify",
            GATHER,
            Helper.send_verify,
            Server.receive_verify,
            role=Role.HELPER,
            finish=Server.finish_verify,
        ),
        Step("unmask", BROADCAST, Server.send_unmask, Helper.receive_unmask, role=Role.HELPER),
        Step(
            "unmask",
            GATHER,
            Helper.send_unmask,
            Server.receive_unmask,
            role=Role.HELPER,
            finish=Server.finish_unmask,
        ),
        Step("result", LOCAL, finish=Server.finish_result),
    )

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        dim = parameters.dim
        self.proofs = pine.Pine(dim, pine.largest_bound())
        # No coordinate is clipped by itself.
        usual = (math.sqrt(dim) + 6) / 100
        self.clip_norm = usual if parameters.clip_norm is None else parameters.clip_norm
        heaviest = self.scale(0 if parameters.weights is None else int(parameters.weights.argmax()))
        norm = norm_before_rounding(self.proofs.norm_bound, dim)
        self.quantiser = Quantiser(math.inf, norm / (self.clip_norm * heaviest))

    @classmethod
    def enrolment(cls, devices: int, helpers: int = 1) -> Enrolment:
        return assisted.enrolment(devices, 1, PineMember, PineHelpingMember)

    @classmethod
    def masking(cls, devices: int, options: MaskingOptions) -> OnlySummed:
        return OnlySummed(devices)

    @property
    def summed_in(self) -> Field:
        return GROUP

    def bounded(self, values: NDArray[np.floating]) -> tuple[NDArray[np.floating], float | None]:
        return clip_l2(values, self.clip_norm), self.proofs.norm_bound

    @property
    def clips(self) -> str:
        return f"--clip-norm {self.clip_norm:g}"

    def place(self, device: int, round_index: int) -> tuple[bytes, bytes]:
        """Return what a report is bound to, and its proof's nonce; devices by enrolment id."""
        about = f"{self.parameters.dim} values, norm {self.proofs.norm_bound}"
        place = f"{self.context(round_index)} report of device {device}: {about}".encode()
        return place, sha256(place).digest()[: pine.NONCE_BYTES]

    @property
    def largest_message(self) -> int:
        return RELAYED + self.proofs.leader_bytes

    @property
    def largest_reply(self) -> int:
        return max(self.parameters.devices * self.proofs.verifier_bytes, self.largest_message)

    def settings(self) -> dict[str, Any]:
        about = {"helpers": 1, "clip_norm": self.clip_norm, "norm_bound": self.proofs.norm_bound}
        return about | {"group": GROUP.name, "clip": None, "levels": None}

    @property
    def needed_in_sum(self) -> int:
        return self.parameters.threshold

    def promises(self) -> list[Promise]:
        threshold, devices = self.parameters.threshold, self.parameters.devices
        apart = (
            "as long as the helper does not collude with the server, the server learns the sum of "
            f"at least {threshold} devices' vectors, or, with colluding devices, the sum of the "
            "others; the helper learns none. It answers once a round, and for no fewer devices"
        )
        short = (
            "as long as both server and helper follow the protocol, what a device adds to the sum "
            f"has at most the norm {self.proofs.norm_bound / self.quantiser.levels:.4g}: that of "
            f"--clip-norm {self.clip_norm:g} with the largest weight, and what rounding may add"
        )
        return [Certain(apart, threshold), Certain(short, worst=devices * self.proofs.forged)]

    def sizes(self) -> dict[Method, float]:
        parameters, proofs = self.parameters, self.proofs
        reports = parameters.devices - parameters.planned_dropouts
        named = -(-(self.population or parameters.devices) // 8)
        return {
            Server.send_verify_key: VERIFY_KEY_BYTES,
            Device.send_masked_input: self.largest_message,
            Server.send_verify: named + RELAYED * reports,
            Helper.send_verify: proofs.verifier_bytes * reports,
            Server.send_unmask: named + proofs.seeds_bytes * reports,
            Helper.send_unmask: proofs.element_bytes * parameters.dim,
        }

    def helper(self, number: int, round_index: int, secrets: keys.SecretSource) -> PineHelper:
        return PineHelper(self, round_index, self.enrolled[self.population + number])
