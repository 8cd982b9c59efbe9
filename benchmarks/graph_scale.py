"""CPU time of a `secagg-graph` device as the number of devices grows: no faster than the degree.

d = 10,000; 10 % of the devices may collude, 30 % drop out. The mean over the surviving devices, of
all phases. Takes about four minutes on one core. The round of 10,000 devices on several ranks:

    mpirun -n 3 hpcfl bench secagg-graph --devices 10000 --dim 10000 --rounds 1 --warmup 0
"""

from __future__ import annotations

from harness import figure, run


def main() -> None:
    first: tuple[float, int] | None = None
    for devices in (100, 1000, 10_000):
        experiment, (record,) = run("secagg-graph", devices, dim=10_000, rounds=1, warmup=0)
        seconds = float(record.cpu_seconds[:, :-1].sum(axis=0)[record.survived].mean())
        degree = experiment.protocol.settings()["degree"]
        print(f"N = {devices:>6,}: degree {degree:>3}, {seconds * 1e3:.2f} ms a device")
        if first is None:
            first = seconds, degree
            continue
        growth = (seconds / first[0]) / (degree / first[1])
        figure(f"N = {devices:,}: growth of the CPU time over that of the degree", growth, 1.0)


if __name__ == "__main__":
    main()
