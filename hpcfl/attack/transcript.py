"""A file with everything that a curious server and its colluding devices know after a round.

It is a ``.npz`` file of plain arrays, without pickle. It also has the values that honest devices
contributed. The adversary does not know them; its findings are compared with them. The file is
therefore insecure, as its `WARNING` says. `header` is JSON: protocol, round, nonce and
parameters. `weights` is empty if all weights are equal. Each message of `PHASES`, each colluder's
private mask key and each device's true values have an array of their own: for example,
`masked_input/3` is the upload of device 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.algorithms.aggregation import find_named
from hpcfl.algorithms.aggregation.base import COLLUSION, AggregationProtocol
from hpcfl.algorithms.aggregation.messages import Flags, to_flags
from hpcfl.algorithms.aggregation.secagg import SecAgg
from hpcfl.algorithms.parameters import Parameters
from hpcfl.comm.phases import Payload
from hpcfl.crypto.keys import KEY_BYTES
from hpcfl.errors import UsageError
from hpcfl.privacy.threat import Threat
from hpcfl.rounds.observer import RoundObserver, Scene
from hpcfl.system import files, outputs
from hpcfl.values import asdict, dataclass

FORMAT = "hpcfl transcript 3"
WARNING = "INSECURE: this file holds secret keys, and the values of devices in the clear"
PHASES = ("advertise_keys", "masked_input", "unmask")

Values = NDArray[np.int32]


@dataclass(frozen=True)
class Transcript:
    """One round from the adversary's view, and the true values."""

    kind: type[SecAgg]  # the protocol
    parameters: Parameters
    round_index: int
    nonce: bytes  # drawn by the server after the last key; it determines the order of a ring
    survived: Flags  # devices whose upload is in the sum
    dropped: Flags  # devices that shared keys but sent no upload
    colluding: Flags
    messages: Mapping[str, Mapping[int, Payload]]  # by phase of `PHASES`, then sender; sealed
    mask_keys: Mapping[int, bytes]  # private keys of colluding devices that advertised keys
    truth: Mapping[int, Values]  # every honest survivor's contribution, in upload order

    def save(self, path: Path) -> None:
        """Write the transcript to a file atomically."""
        parameters = asdict(self.parameters)
        weights = parameters.pop("weights")
        header = {
            "protocol": self.kind.name,
            "round": self.round_index,
            "nonce": self.nonce.hex(),
            "parameters": parameters,
        }
        keys = {id: np.frombuffer(key, np.uint8) for id, key in self.mask_keys.items()}
        arrays: dict[str, Any] = {
            "format": np.array(FORMAT),
            "warning": np.array(WARNING),
            "header": np.frombuffer(json.dumps(header, default=str).encode(), np.uint8),
            "weights": np.empty(0) if weights is None else weights,
            "survived": self.survived,
            "dropped": self.dropped,
            "colluding": self.colluding,
        }
        lists = {**self.messages, "mask_keys": keys, "truth": self.truth}
        for name in (*PHASES, "mask_keys", "truth"):
            arrays |= {f"{name}/{id}": values for id, values in lists[name].items()}
        with outputs.writing(path, outputs.TRANSCRIPT) as file:
            np.savez(file, **arrays)


def attackable(kind: type[AggregationProtocol]) -> type[SecAgg]:
    """Return a protocol if the attack can remove its masks; else raise UsageError."""
    if not issubclass(kind, SecAgg):
        raise UsageError(
            f"rounds of {kind.name} cannot be attacked: the attack removes masks of secagg and of "
            "protocols made from it"
        )
    return kind


def load(path: Path, protocol: str | None = None) -> Transcript:
    """Return the transcript in a file; raise UsageError if it is not one.

    `protocol`, as ``MODULE:CLASS``, is for a protocol that does not come with hpcfl.
    """
    try:
        arrays = files.load_npz(path)
        if str(arrays["format"]) != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        return _read(arrays, protocol)
    except (OSError, LookupError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} cannot be read as a transcript of 'hpcfl bench --keep-transcript': {error}"
        ) from None


def _read(file: Mapping[str, NDArray[Any]], protocol: str | None) -> Transcript:
    header = json.loads(file["header"].tobytes())
    weights = file["weights"]
    return Transcript(
        kind=attackable(find_named(header["protocol"], protocol)),
        parameters=Parameters(**header["parameters"], weights=weights if weights.size else None),
        round_index=header["round"],
        nonce=bytes.fromhex(header["nonce"]),
        survived=file["survived"],
        dropped=file["dropped"],
        colluding=file["colluding"],
        messages={phase: _by_device(phase, file) for phase in PHASES},
        mask_keys={id: key.tobytes() for id, key in _by_device("mask_keys", file).items()},
        truth=_by_device("truth", file),
    )


def _by_device(name: str, file: Mapping[str, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """Return a file's arrays with this prefix, by device."""
    keys = (key for key in file if key.startswith(f"{name}/"))
    return {int(key.partition("/")[2]): file[key] for key in keys}


def check(protocol: AggregationProtocol, *, insecure: bool, reduce: bool) -> None:
    """Raise UsageError unless a run's transcript may be kept.

    The protocol must be attackable, the keys `insecure`, and uploads not summed by a `reduce`.
    """
    attackable(type(protocol))
    if not insecure:
        raise UsageError(
            "--keep-transcript writes secret keys and the devices' values to a file: it is for "
            "demonstrations, and must be given together with --insecure-seed"
        )
    if reduce:
        raise UsageError(
            "--keep-transcript needs every device's upload, which --upload reduce sums on the way: "
            "leave one of them out"
        )


def colluding(parameters: Parameters) -> Flags:
    """Return the floor(gamma N) devices that collude with the server, drawn from the run's seed."""
    seeds = np.random.SeedSequence(parameters.seed, spawn_key=(COLLUSION,))
    order = np.random.default_rng(seeds).permutation(parameters.devices)
    count = Threat.of(parameters).colluding
    return to_flags(order[:count].tolist(), parameters.devices)


class Recorder(RoundObserver):
    """Records one round of a protocol that :func:`check` accepts; every rank has a recorder.

    `transcript` is set by :meth:`collect`, only on the server's rank; otherwise it is None.
    """

    hears = True

    def __init__(self, protocol: AggregationProtocol, round_index: int) -> None:
        self._protocol = protocol
        self._round = round_index
        self._heard: dict[str, dict[int, Payload]] = {}
        self.transcript: Transcript | None = None

    def heard(self, index: int, step: str, sender: int, message: Payload) -> None:
        """Keep a message that the server receives, without a copy, which would take time."""
        if index == self._round:
            self._heard.setdefault(step, {})[sender] = message

    def collect(self, scene: Scene) -> None:
        """Collect data that the server has not received from all ranks; every rank calls this."""
        if scene.index != self._round:
            return
        transport, devices, server = scene.transport, scene.devices, scene.server
        parameters = self._protocol.parameters
        colludes = colluding(parameters)
        honest = {device.id: device for device in scene.survivors if not colludes[device.id]}
        # A device that vanished before the first phase has no keys.
        telling = [id for id in devices if colludes[id] and devices[id].state.masking.private]

        def mask_key(id: int) -> Payload:
            return np.frombuffer(devices[id].state.masking.private, np.uint8)

        def contribution(id: int) -> Payload:
            _, integers = honest[id].contribution(scene.inputs(id))
            return integers.astype("<i4").view(np.uint8)

        keys = dict(transport.gather(sorted(telling), mask_key, KEY_BYTES))
        values = dict(transport.gather(sorted(honest), contribution, 4 * parameters.dim))
        if server is None:
            return
        survived = to_flags(server.survivors, parameters.devices)
        uploads = self._heard["masked_input"]
        # Uploads outside the sum keep their private mask, whose seed the server never requests.
        used = {id: uploads[id] for id in server.survivors}
        nothing = np.empty(0, np.uint8)  # a transport may leave out an empty message
        self.transcript = Transcript(
            kind=attackable(type(self._protocol)),
            parameters=parameters,
            round_index=self._round,
            nonce=server.state.nonce,
            survived=survived,
            dropped=to_flags(server.dropped, parameters.devices),
            colluding=colludes,
            messages=self._heard | {"masked_input": used},
            mask_keys={id: key.tobytes() for id, key in keys.items()},
            truth={
                id: values.get(id, nothing).view("<i4")
                for id in np.flatnonzero(survived & ~colludes).tolist()
            },
        )
